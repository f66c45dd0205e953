# Runs a background process and stores its PID and exit code. $1 its directory · then the program and its arguments
folder=$1
shift
trap : HUP INT TERM
read -r line <"/proc/$$/stat"
echo "$$ $(set -- ${line##*) }; shift 19; echo "$1")" >"$folder/pid.new"
sleep 2147483647 >"$folder/in" &
echo "$!" >"$folder/holder"
mv "$folder/pid.new" "$folder/pid"
"$@" <"$folder/in" >>"$folder/log" 2>&1
code=$?
kill "$!" 2>/dev/null
echo "$code" >"$folder/code.new" && mv "$folder/code.new" "$folder/code"
