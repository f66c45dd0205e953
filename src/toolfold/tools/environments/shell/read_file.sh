# Prints a file. $1 path · $2 first byte, counted from 1 · $3 maximum number of bytes
[ ! -d "$1" ] || { echo "$1 is a directory"; exit 1; }
exec <"$1" || exit 1
if [ "$2" = 1 ]; then head -c "$3"; else tail -c "+$2" | head -c "$3"; fi
