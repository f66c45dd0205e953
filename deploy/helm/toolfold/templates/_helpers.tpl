{{- define "toolfold.name" -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "toolfold.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "toolfold.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "toolfold.secret" -}}
{{ .Values.database.existingSecret | default (printf "%s-database" (include "toolfold.name" .)) }}
{{- end }}

{{- define "toolfold.databaseHost" -}}
{{ .Values.database.host | default (printf "%s-database" (include "toolfold.name" .)) }}
{{- end }}

{{- define "toolfold.store" -}}
{{ printf "postgresql://%s:%d/%s" (include "toolfold.databaseHost" .) (int .Values.database.port) .Values.database.name }}
{{- end }}
