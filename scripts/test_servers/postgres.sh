#!/bin/sh
# Installs PostgreSQL with pgvector for the tests of the shared store, from a package whose programs need no other package.
# Its version is pinned in scripts/test_servers/postgres. An installation that is complete is left as it is.
# Prints the result and never fails. $1 directory
set -u
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/postgres" && pwd) || exit 0
python=$(dirname "$(dirname "$folder")")/bin/python # of the environment that contains the directory
[ -x "$python" ] || python=$(command -v python3)
max_seconds=150

want=$("$python" --version; cksum <"$pins/server.txt")
if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$want" ]; then
  echo "postgres: already installed"
  exit 0
fi
rm -rf "$folder" && mkdir -p "$folder" || exit 0
if timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile \
  --target "$folder" -r "$pins/server.txt" >"$folder/install.log" 2>&1; then
  echo "$want" >"$folder/.complete"
  echo "postgres: installed"
else
  echo "postgres: not available: $(grep -v '^WARNING' "$folder/install.log" | tail -n 1)"
fi
