#!/bin/sh
# Makes the virtual environment where Python came without what it takes (Debian splits that off).
set -u
python=$1
venv=$2
rm -rf "$venv" # half an environment would be taken for a whole one next time
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing python3-venv"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null 2>&1
fi
"$python" -m venv "$venv" && exit 0
rm -rf "$venv"
echo "no virtual environment could be made with $python; on Debian: apt-get install python3-venv"
exit 1
