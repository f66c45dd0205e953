#!/bin/sh
# Installs the core of Home Assistant for the tests of its tools, in an environment of its own: the last version that runs on
# Python 3.11, without the parts for its web page and its cloud. Prints the result and never fails. $1 directory
set -u
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/homeassistant" && pwd)/requirements.txt || exit 0
python=$(dirname "$(dirname "$folder")")/bin/python # of the environment that contains the directory
[ -x "$python" ] || python=$(command -v python3)
max_seconds=300

want=$("$python" --version; cksum <"$pins")
if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$want" ]; then
  echo "homeassistant: already installed"
  exit 0
fi
log=$folder.log
mkdir -p "$(dirname "$folder")" && rm -rf "$folder"
# The list is complete, so no dependency has to be resolved; wheels only, because compiling takes minutes.
if "$python" -m venv --without-pip "$folder" >"$log" 2>&1 &&
  timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet --python "$folder/bin/python" install \
    --no-deps --no-compile --only-binary :all: -r "$pins" >>"$log" 2>&1; then
  echo "$want" >"$folder/.complete"
  echo "homeassistant: installed"
else
  rm -rf "$folder"
  echo "homeassistant: not available: $(grep -v '^WARNING' "$log" | tail -n 1)"
fi
exit 0
