#!/bin/sh
# Installs the test suites of the packages `openai` and `anthropic`, which are in their source archives, and an environment
# that runs them. Every version is pinned in scripts/test_servers/sdk_tests. What is complete is left as it is.
# Prints the result and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/sdk_tests" && pwd) || exit 0
python=$(find_python "$folder")
max_seconds=300

pip() { timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet "$@"; }

# $1 where to install
install() {
  "$python" -m venv --without-pip "$1/environment" &&
    pip --python "$1/environment/bin/python" install --no-deps --no-compile -r "$pins/python.txt" &&
    pip download --no-deps --no-binary :all: --require-hashes -d "$1/archives" -r "$pins/sources.txt" &&
    for archive in "$1"/archives/*.tar.gz; do
      name=$(basename "$archive" .tar.gz)
      mkdir -p "$1/${name%-*}" && tar -xzf "$archive" --strip-components 1 -C "$1/${name%-*}" || return 1
    done && rm -r "$1/archives"
}

want=$("$python" --version; cat "$pins/python.txt" "$pins/sources.txt" | cksum)
install_pinned "tests of the SDKs" "$folder" "$want" install "$folder"
