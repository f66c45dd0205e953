# Replaces a file by stdin, atomically. $1 path · $2 expected number of bytes · $3 unique suffix of the temporary file
path=$(readlink -f -- "$1" || echo "$1")
[ ! -d "$path" ] || { echo "$1 is a directory"; exit 1; }
case $path in */*) mkdir -p -- "${path%/*}" || exit 1 ;; esac
new=$path.toolfold.$3
(set -C && : >"$new") || exit 1  # in a shared directory, another user may have put a link there
{ [ ! -e "$path" ] || cp -p -- "$path" "$new"; } &&
  cat >"$new" && size=$(wc -c <"$new") && [ "$((size))" = "$2" ] && mv -f -- "$new" "$path" && exit
rm -f -- "$new"
exit 1
