# Makes a pipe of bytes out of a terminal in raw mode, for one program, and says how the program fares.
# $1 what marks our own words · $2 our folder · $3 how many seconds we wait, once the program has ended, to be let go
# then the program and its arguments
# Takes from the terminal: `d` and a number, with so many bytes after it, for the program's input; `e` at the
# end of that; `a` where a part of the output has arrived; `q` to go.
# Should we be killed, the guard removes our folder: it knows us by the number in its name.
mark=$1 pipes=$2/pipes.$$ patience=$((20 + $3))
shift 3
trap : HUP INT QUIT TERM
(umask 077 && mkdir -p "$pipes" && mkfifo "$pipes/arrived" "$pipes/pieces") || exit 126
exec 3<&0 4<>"$pipes/arrived" 5>&1 6<>"$pipes/pieces" </dev/null
setsid=$(command -v setsid)

# What we say between the parts of the output may fall within what is said in it, and is told from it by its sign.
say() { printf '\035%s %s\035' "$mark" "$1" >&5; }

# Never waits for the program, since what it takes may also be what the program waits for.
take() {
  trap '' HUP INT QUIT TERM
  number=0
  while read -r word count; do
    case $word in
      d)
        number=$((number + 1))
        dd bs="$count" count=1 iflag=fullblock of="$pipes/$number" 2>/dev/null
        echo "$number" >&6
        ;;
      e) echo end >&6 ;;
      a) echo >&4 ;;
      q) break ;;
    esac
  done
  echo end >&6
  echo gone >&4
}

deliver() {
  trap '' HUP INT QUIT TERM
  while read -r number <&6 && [ "$number" != end ]; do
    cat "$pipes/$number" 2>/dev/null
    rm -f "$pipes/$number"
    say g
  done
}

# How the program ended is said within its output, after all that it wrote: whoever hears it need not wait for more.
run() {
  trap : HUP INT QUIT TERM
  $setsid "$@" 2>"$pipes/errors" 3<&- 4>&- 5>&- 6>&-
  code=$?
  printf '\036%s x %s %s\036' "$mark" "$code" "$(tail -c 1000 "$pipes/errors" | tr '\036\n' '  ')"
  echo end >&6  # nobody reads what else is delivered
}

# A part of the output is a few pieces of it. Not more than four parts are on their way: what reads terminals
# there drops a client that does not keep up. One that has gone is not waited for.
send() {
  trap '' HUP INT QUIT TERM
  parts=0
  while :; do
    count=$(dd bs=16384 count=8 2>&1 >&5) || break
    case $count in 0+0*) break ;; esac
    say r
    parts=$((parts + 1))
    [ "$parts" -lt 4 ] || { read -r gone <&4 && [ -z "$gone" ] && parts=$((parts - 1)); } || break
  done
  say o
}

take <&3 &
taker=$!
deliver | run "$@" | send
naps=0
while kill -0 "$taker" 2>/dev/null && [ "$naps" -lt "$patience" ]; do
  if [ "$naps" -lt 20 ]; then sleep 0.03; else sleep 1; fi 2>/dev/null
  naps=$((naps + 1))
done
kill -KILL "$taker" 2>/dev/null  # whoever could let us go is gone
rm -rf "$pipes"
