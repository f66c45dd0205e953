#!/bin/sh
# Installs agent frameworks and programs that the tests of the model proxy and of the adapters use, each part on its own:
#   python     LangChain, Pydantic AI and OpenAI Agents
#   llamaindex LlamaIndex, which needs older versions of `openai` and `anthropic`
#   adk        Google's Agent Development Kit and smolagents
#   crewai     CrewAI, which needs an older `mcp`
#   vercel     the Vercel AI SDK
#   aider      aider, only for the tests that `make test-all` and `make test-clients` run
#   goose      Goose, likewise
# Every version is pinned in scripts/test_servers/frameworks. A part that is complete is left as it is.
# Prints the result of each part and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/frameworks" && pwd) || exit 0
python=$(find_python "$folder")
max_seconds=300

pip() { timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# The lists are complete, so no dependency has to be resolved. The tests import a small part, so only that is compiled.
# $1 part · $2 where to install
environment() {
  "$python" -m venv --without-pip "$2" &&
    pip --python "$2/bin/python" install --no-deps --no-compile -r "$pins/$1.txt"
}

packages_of_node() {
  cp "$pins/package.json" "$pins/package-lock.json" "$2" &&
    (cd "$2" && timeout "$max_seconds" npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error)
}

packages_of_aider() {
  max_seconds=900 # runs in a subshell of its own
  environment "$@"
}

packages_of_goose() {
  pins=$pins/goose
  packages_of_node "$@"
}

# $1 part · $2 function that installs it · then the files that define its content
provide() {
  part=$1 make=$2 place=$folder/$1 log=$folder/$1.log
  shift 2
  want=$("$python" --version; cd "$pins" && cat "$@" | cksum)
  if [ "$(cat "$place/.complete" 2>/dev/null)" = "$want" ]; then
    echo "frameworks $part: already installed"
    return
  fi
  rm -rf "$place" && mkdir -p "$place"
  if "$make" "$part" "$place" >"$log" 2>&1; then
    echo "$want" >"$place/.complete"
    echo "frameworks $part: installed"
  else
    rm -rf "$place"
    echo "frameworks $part: not available: $(grep -v '^WARNING' "$log" | tail -n 1)"
  fi
}

mkdir -p "$folder" || exit 0
provide python environment python.txt &
provide llamaindex environment llamaindex.txt &
provide adk environment adk.txt &
provide crewai environment crewai.txt &
provide vercel packages_of_node package.json package-lock.json &
if [ -n "${TOOLFOLD_TEST_ALL:-}" ]; then # about 700 MB
  provide aider packages_of_aider aider.txt &
  provide goose packages_of_goose goose/package.json goose/package-lock.json &
fi
wait
exit 0
