# Runs one program on the terminal and reports its exit code.
# $1 mark of the control frames · then the program and its arguments
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
