#!/bin/sh
# Installs the programs that check the files in deploy/ into an environment of their own: hadolint, Helm, Kubernetes schemas,
# and two readers of compose files. Versions are pinned in scripts/test_servers/linters. An installation that is complete is left
# as it is. Prints the result and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/linters" && pwd) || exit 0
python=$(find_python "$folder")
max_seconds=150

install() {
  "$python" -m venv --without-pip "$folder" &&
    timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet --python "$folder/bin/python" install \
      --no-deps -r "$pins/linters.txt"
}
install_pinned linters "$folder" "$("$python" --version; cksum <"$pins/linters.txt")" install
