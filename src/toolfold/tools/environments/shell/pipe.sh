# Carries the streams of one program over a terminal in raw mode, and reports its exit.
# $1 mark of the control frames · $2 state directory · $3 seconds to wait for `q` after the program has ended
# then the program and its arguments
# Requests on the terminal: `d` and a count, followed by that many bytes of input; `e` for the end of the input;
# `a` to acknowledge a batch of output; `q` to exit.
# If this script is killed, the guard removes its directory, which is named after its PID.
mark=$1 pipes=$2/pipes.$$ patience=$((20 + $3))
shift 3
trap : HUP INT QUIT TERM
(umask 077 && mkdir -p "$pipes" && mkfifo "$pipes/arrived" "$pipes/pieces") || exit 126
exec 3<&0 4<>"$pipes/arrived" 5>&1 6<>"$pipes/pieces" </dev/null
setsid=$(command -v setsid)

# Flow control frames may occur inside the exit frame, so they have a different delimiter.
say() { printf '\035%s %s\035' "$mark" "$1" >&5; }

# Never waits for the program, which may itself be waiting for a later request.
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

# The exit frame follows all output of the program, so the reader knows that the output is complete.
run() {
  trap : HUP INT QUIT TERM
  $setsid "$@" 2>"$pipes/errors" 3<&- 4>&- 5>&- 6>&-
  code=$?
  printf '\036%s x %s %s\036' "$mark" "$code" "$(tail -c 1000 "$pipes/errors" | tr '\036\n' '  ')"
  echo end >&6  # the rest of the input is not read any more
}

# Sends output in batches of a few chunks, at most four of them unacknowledged: the terminal server disconnects
# clients that fall behind. Stops waiting when the client is gone.
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
kill -KILL "$taker" 2>/dev/null  # the client is gone
rm -rf "$pipes"
