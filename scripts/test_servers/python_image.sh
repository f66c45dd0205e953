#!/bin/sh
# Adds the Python of this machine to the root file system of a container image, at the same paths.
# $1 directory of the root file system, $2 Python program, $3 directory of its standard library
set -eu
copy() {
  mkdir -p "$1${2%/*}"
  cp -L "$2" "$1$2"
}
copy "$1" "$2"
ln -sf "$2" "$1/bin/python3"
for library in $(ldd "$2" "$3"/lib-dynload/*.so 2>/dev/null | grep -o '/[^ :]*' | grep '\.so' | sort -u); do
  case $library in "$3"*) ;; *) copy "$1" "$library" ;; esac
done
mkdir -p "$1$3"
tar -C "$3" -c --exclude=__pycache__ --exclude=site-packages --exclude=dist-packages --exclude=test --exclude='config-*' \
  --exclude=idlelib --exclude=tkinter --exclude=ensurepip --exclude=lib2to3 . | tar -C "$1$3" -x
