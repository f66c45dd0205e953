#!/bin/sh
# Installs the core of Home Assistant for the tests of its tools, in an environment of its own: the last version that runs on
# Python 3.11, without the parts for its web page and its cloud. Prints the result and never fails. $1 directory
set -u
. "$(dirname "$0")/installing.sh"
folder=$(realpath -m "$1")
pins=$(cd "$(dirname "$0")/homeassistant" && pwd)/requirements.txt || exit 0
python=$(find_python "$folder")
max_seconds=300

# The list is complete, so no dependency has to be resolved; wheels only, because compiling takes minutes.
install() {
  "$python" -m venv --without-pip "$folder" &&
    timeout "$max_seconds" "$python" -m pip --disable-pip-version-check --quiet --python "$folder/bin/python" install \
      --no-deps --no-compile --only-binary :all: -r "$pins"
}
install_pinned homeassistant "$folder" "$("$python" --version; cksum <"$pins")" install
