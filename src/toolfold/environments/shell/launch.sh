# Starts a background process that stays when we go.
# $1 our folder · $2 its name · $3 what there is to know of it · $4 the program `setsid`, or nothing
# then the program and its arguments
folder=$1/processes/$2
umask 077
mkdir "$folder" && mkfifo "$folder/in" && : >"$folder/log" && printf '%s\n' "$3" >"$folder/about.new" || exit 1
mv "$folder/about.new" "$folder/about" || exit 1
supervisor=$1/shell/supervisor setsid=$4
shift 4
# We lead a session, so that `setsid` starts another process for the new one and does not keep us waiting.
# With `&` alone a shell would make it deaf to Ctrl-C.
[ -z "$setsid" ] || exec "$setsid" sh "$supervisor" "$folder" "$@" </dev/null >/dev/null 2>&1
set -m
sh "$supervisor" "$folder" "$@" </dev/null >/dev/null 2>&1 &
