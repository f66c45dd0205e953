# Replaces a file by our input, as a whole or not at all. $1 the path · $2 how many bytes there must be
path=$(readlink -f -- "$1" || echo "$1")
[ ! -d "$path" ] || { echo "$1 is a folder"; exit 1; }
case $path in */*) mkdir -p -- "${path%/*}" || exit 1 ;; esac
new=$path.toolfold.$$
[ ! -e "$path" ] || cp -p -- "$path" "$new" || exit 1
cat >"$new" && size=$(wc -c <"$new") && [ "$((size))" = "$2" ] && mv -f -- "$new" "$path" && exit
rm -f -- "$new"
exit 1
