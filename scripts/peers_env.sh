#!/bin/sh
# Creates a virtual environment with the retrievers that `benchmarks/retrieval.py` compares with.
#
#     sh scripts/peers_env.sh ENVIRONMENT PEERS_FOLDER [PYTHON]
#
# PEERS_FOLDER contains the adapters and their requirements.txt. If a line cannot be installed, the benchmark
# reports only that peer as failed. hermes-agent, which conflicts with the others, is unpacked into
# ENVIRONMENT/hermes.
set -u
[ $# -ge 2 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
environment=$1
peers=$2
python=${3:-python3}

"$python" -m venv "$environment" || sh "$(dirname "$0")/make_venv.sh" "$python" "$environment" || exit 1
install() { "$environment/bin/python" -m pip --disable-pip-version-check --quiet install "$@"; }

if ! install -r "$peers/requirements.txt"; then
  echo "cannot install all requirements at once; installing line by line" >&2
  grep -v '^ *\(#\|$\)' "$peers/requirements.txt" | while read -r line; do
    install "$line" || echo "skipped: $line" >&2
  done
fi

hermes=$(sed -n 's/.*--no-deps \(hermes-agent==[0-9.]*\).*/\1/p' "$peers"/*.py | head -1)
if [ -n "$hermes" ] && [ ! -d "$environment/hermes" ]; then
  folder=$(mktemp -d)
  "$environment/bin/python" -m pip --quiet download --no-deps --dest "$folder" "$hermes" &&
    "$environment/bin/python" -m zipfile -e "$folder"/*.whl "$environment/hermes" ||
    echo "skipped: $hermes" >&2
  rm -rf "$folder"
fi
