#!/bin/sh
# Creates the root file system of a small container image from busybox and bash. $1 directory to create
set -eu
busybox=$(command -v busybox)
bash=$(command -v bash-static)
mkdir -p "$1/bin" "$1/usr/bin" "$1/dev" "$1/proc" "$1/sys" "$1/etc" "$1/run" "$1/var" "$1/root" "$1/home"
mkdir -m 1777 "$1/tmp" "$1/var/tmp"
mkdir -m 777 "$1/workspace"
cp "$busybox" "$1/bin/busybox"
cp "$bash" "$1/bin/bash"
for name in $("$busybox" --list); do
  [ -e "$1/bin/$name" ] || ln -s busybox "$1/bin/$name"
done
echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
echo 'root:x:0:' >"$1/etc/group"
for name in hosts hostname resolv.conf localtime; do
  : >"$1/etc/$name"
done
