#!/bin/sh
# Creates the virtual environment if Python lacks the venv module (a separate package on Debian).
set -u
python=$1
venv=$2
rm -rf "$venv" # an incomplete environment would be used by the next run
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing python3-venv"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null 2>&1
fi
"$python" -m venv "$venv" && exit 0
rm -rf "$venv"
echo "cannot create a virtual environment with $python; on Debian run: apt-get install python3-venv"
exit 1
