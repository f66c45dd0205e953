# Gives a terminal to one program, and says how it ended.
# $1 what marks our own words · then the program and its arguments
mark=$1
shift
trap : HUP INT QUIT TERM
stty sane
"$@"
code=$?
stty raw -echo
printf '\036%s x %s \036\036%s o\036' "$mark" "$code" "$mark"
while read -r line && [ "$line" != "q $mark" ]; do :; done
exit "$code"
