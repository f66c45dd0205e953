# Sends a file. $1 the path · $2 the first byte, from 1 · $3 how many bytes at most
[ ! -d "$1" ] || { echo "$1 is a folder"; exit 1; }
exec <"$1" || exit 1
if [ "$2" = 1 ]; then head -c "$3"; else tail -c "+$2" | head -c "$3"; fi
