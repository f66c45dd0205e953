# Starts a background process that outlives the client.
# $1 state directory · $2 name of the process · $3 its description · $4 path of `setsid`, or empty
# then the program and its arguments
folder=$1/processes/$2
umask 077
mkdir "$folder" && mkfifo "$folder/in" && : >"$folder/log" && printf '%s\n' "$3" >"$folder/about.new" || exit 1
mv "$folder/about.new" "$folder/about" || exit 1
supervisor=$1/shell/supervisor setsid=$4
shift 4
# This script leads a session, so `setsid` forks and returns at once.
# With `&` alone the shell would make the process ignore SIGINT.
[ -z "$setsid" ] || exec "$setsid" sh "$supervisor" "$folder" "$@" </dev/null >/dev/null 2>&1
set -m
sh "$supervisor" "$folder" "$@" </dev/null >/dev/null 2>&1 &
