#!/bin/sh
# Puts apptainer into a folder where this system has no package of it: Debian's newest, with the libraries that it
# was built for beside it. Prints how that went and never fails. $1 the folder; the program is then $1/usr/bin/apptainer
set -u
folder=$(realpath -m "$1")
mkdir -p "${folder%/*}" 2>/dev/null
give_up() {
  echo "not available here: $1"
  rm -rf "$folder.new"
  exit 0
}

command -v apptainer >/dev/null && echo "here already" && exit
"$folder/usr/bin/apptainer" version >/dev/null 2>&1 && echo "here already" && exit
command -v apt-get >/dev/null || give_up "this is no Debian, install it by hand"
[ "$(id -u)" = 0 ] || give_up "setting it up needs root"
command -v patchelf >/dev/null || give_up "it needs patchelf"
[ "$(dpkg --print-architecture)" = amd64 ] || give_up "tried on amd64 only"
origin=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$origin" ] || give_up "no mirror of Debian is configured"

# Lists of our own: those of the system keep naming one release only.
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $origin sid main" >"$work/sources.list"
apt() {
  apt-get -qq -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" \
    -o Dir::Etc::sourceparts=- -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
    -o Acquire::Languages=none "$@" >/dev/null 2>&1
}
apt update || give_up "the newest Debian cannot be reached"
(cd "$work/packages" && apt download apptainer libc6 libseccomp2 libsqlite3-0) || give_up "there is no package of it"

rm -rf "$folder.new"
mkdir -p "$folder.new/beside" || give_up "$folder cannot be made"
for package in "$work"/packages/*.deb; do
  case $package in */apptainer_*) into=$folder.new ;; *) into=$folder.new/beside ;; esac
  dpkg -x "$package" "$into" || give_up "$package cannot be unpacked"
done
# It looks for its settings and its mount point beside its program, once it is not in /usr.
mkdir -p "$folder.new/usr/etc" "$folder.new/usr/lib/var/lib/apptainer/mnt/session"
mv "$folder.new/etc/apptainer" "$folder.new/usr/etc/apptainer"
sed -i 's/^root default capabilities.*/root default capabilities = no/' "$folder.new/usr/etc/apptainer/apptainer.conf"
libraries=$folder/beside/usr/lib/x86_64-linux-gnu
for program in usr/bin/apptainer usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" \
    "$folder.new/$program" || give_up "$program cannot be patched"
done
rm -rf "$folder" && mv "$folder.new" "$folder"
problem=$("$folder/usr/bin/apptainer" version 2>&1) && echo installed || give_up "$problem"
