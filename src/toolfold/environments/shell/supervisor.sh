# Notes where a background process is and how it ended. $1 its folder · then the program and its arguments
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
