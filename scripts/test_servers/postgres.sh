#!/bin/sh
# Installs PostgreSQL with pgvector for the tests of the shared store, from a package whose programs need no other package.
# Its version is pinned in scripts/test_servers/postgres. An installation that is complete is left as it is.
# Prints the result and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/postgres" && pwd) || exit 0
python=$(find_python "$folder")
max_seconds=150

install_pinned postgres "$folder" "$("$python" --version; cksum <"$pins/server.txt")" \
  timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile \
  --target "$folder" -r "$pins/server.txt"
