#!/bin/sh
# Installs apptainer into a directory if this system has no package of it: the newest of Debian, with its libraries.
# Prints the result and never fails. $1 directory; the program is then $1/usr/bin/apptainer
set -u
folder=$(realpath -m "$1")
mkdir -p "${folder%/*}" 2>/dev/null
give_up() {
  echo "not available: $1"
  rm -rf "$folder.new"
  exit 0
}

command -v apptainer >/dev/null && echo "already installed" && exit
"$folder/usr/bin/apptainer" version >/dev/null 2>&1 && echo "already installed" && exit
command -v apt-get >/dev/null || give_up "not a Debian system, install it manually"
[ "$(id -u)" = 0 ] || give_up "setting it up needs root"
command -v patchelf >/dev/null || give_up "it needs patchelf"
[ "$(dpkg --print-architecture)" = amd64 ] || give_up "supported on amd64 only"
origin=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$origin" ] || give_up "no Debian mirror is configured"

# Separate package lists, so that those of the system keep a single release.
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $origin sid main" >"$work/sources.list"
apt() {
  apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" \
    -o Dir::Etc::sourceparts=- -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
    -o Acquire::Languages=none "$@" >/dev/null 2>&1
}
apt update || give_up "the Debian mirror is unreachable"
(cd "$work/packages" && apt download apptainer libc6 libseccomp2 libsqlite3-0) || give_up "there is no package of it"

rm -rf "$folder.new"
mkdir -p "$folder.new/beside" || give_up "cannot create $folder"
for package in "$work"/packages/*.deb; do
  case $package in */apptainer_*) into=$folder.new ;; *) into=$folder.new/beside ;; esac
  dpkg -x "$package" "$into" || give_up "cannot unpack $package"
done
# Outside /usr, apptainer looks for its settings and mount point relative to its program.
mkdir -p "$folder.new/usr/etc" "$folder.new/usr/lib/var/lib/apptainer/mnt/session"
mv "$folder.new/etc/apptainer" "$folder.new/usr/etc/apptainer"
sed -i 's/^root default capabilities.*/root default capabilities = no/' "$folder.new/usr/etc/apptainer/apptainer.conf"
libraries=$folder/beside/usr/lib/x86_64-linux-gnu
for program in usr/bin/apptainer usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" \
    "$folder.new/$program" || give_up "cannot patch $program"
done
rm -rf "$folder" && mv "$folder.new" "$folder"
problem=$("$folder/usr/bin/apptainer" version 2>&1) && echo installed || give_up "$problem"
