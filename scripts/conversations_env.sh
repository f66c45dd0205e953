#!/bin/sh
# Creates a virtual environment with the conversations that `benchmarks/replay.py` replays.
#
#     sh scripts/conversations_env.sh ENVIRONMENT [PYTHON]
set -eu
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
environment=$1
python=${2:-python3}
root=$(dirname "$0")/..

"$python" -m venv "$environment" || sh "$root/scripts/make_venv.sh" "$python" "$environment"
install() { "$environment/bin/python" -m pip --disable-pip-version-check --quiet install "$@"; }
install -c "$root/constraints.txt" -e "$root"
install --no-deps bfcl-eval==2026.3.23 # its dependencies are those of its model clients, which are not used
install mpmath==1.3.0 agentdojo==0.1.35
