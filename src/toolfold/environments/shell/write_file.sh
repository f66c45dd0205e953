# Replaces a file by our input, as a whole or not at all. $1 the path · $2 how many bytes there must be
# $3 a word that nobody else has
path=$(readlink -f -- "$1" || echo "$1")
[ ! -d "$path" ] || { echo "$1 is a folder"; exit 1; }
case $path in */*) mkdir -p -- "${path%/*}" || exit 1 ;; esac
new=$path.toolfold.$3
(set -C && : >"$new") || exit 1  # in a folder of several users, a link may be in its place
{ [ ! -e "$path" ] || cp -p -- "$path" "$new"; } &&
  cat >"$new" && size=$(wc -c <"$new") && [ "$((size))" = "$2" ] && mv -f -- "$new" "$path" && exit
rm -f -- "$new"
exit 1
