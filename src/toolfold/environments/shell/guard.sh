# Stays for as long as a client does. Ends what the client asks it to end, tells how background processes
# fare and, when the client is gone, ends all that it left running in the foreground.
# Begins in our folder, $1. $2 what the commands of this client carry in their environment
# $3 after how many seconds of silence it counts as gone, empty for never · $4 how large a log may become
trap '' HUP INT TERM PIPE
. ./shell/limits
client=$2 patience= largest=$4
if [ -n "$3" ] && (echo | read -t 1 -r line) 2>/dev/null; then patience=$3; fi

# The folders of background processes; a name of another kind, which may fall apart into several words, is not ours.
digit='[0-9a-f]'
ours=processes/p$digit$digit$digit$digit$digit$digit$digit$digit

nap() { sleep 0.03 2>/dev/null || sleep 1; }

# The files that show that a process carries the mark. Not every grep reads beyond the end of a string.
carriers() {
  __toolfold_limits "${1#TOOLFOLD_RUN=}" &&
    grep -lsF -- "${__toolfold_soft:+$((__toolfold_soft * 1024)) } $((__toolfold_hard * 1024)) " /proc/[0-9]*/limits
  if [ -n "$whole" ]; then
    grep -lsF -- "$1" /proc/[0-9]*/environ
    return
  fi
  for file in /proc/[0-9]*/environ; do
    case $({ tr '\0' '\n' <"$file"; } 2>/dev/null) in *"$1"*) echo "$file" ;; esac
  done
}
whole=$(printf 'a\0b' | grep -cF b)
[ "$whole" = 1 ] || whole=

# Sets `pids`: what carries the mark, what is in a session that one of those leads, and what they started, unless
# it has ended and nobody has struck it off. `known` keeps those of earlier looks: what they started is ours as well.
members() {
  pids=' ' marked=' '
  for file in $(carriers "$1"); do
    file=${file#/proc/}
    marked="$marked${file%/*} "
  done
  grown=yes
  all=$(cat /proc/[0-9]*/stat 2>/dev/null | cut -c 1-80)  # a shell takes its time over long lines
  set -f
  while [ -n "$grown" ]; do
    grown=
    IFS='
'
    for line in $all; do
      IFS=' '
      pid=${line%% *}
      set -- ${line##*) }
      case $1$pids in [ZX]* | *" $pid "*) continue ;; esac
      case "$marked$pids$known" in
        *" $2 "* | *" $4 "*) [ "$pid" = "$$" ] || pids="$pids$pid " grown=yes ;;
        *) case $marked in *" $pid "*) pids="$pids$pid " grown=yes ;; esac ;;
      esac
    done
  done
  unset IFS
  set +f
  pids=${pids# }
  known="$known$pids"
}

# Whether one of `pids` is there and more than a name that nobody has struck off.
some_alive() {
  for pid in $pids; do
    read -r line 2>/dev/null <"/proc/$pid/stat" || continue
    case ${line##*) } in [ZX]*) ;; *) return 0 ;; esac
  done
  return 1
}

# Not what stands around the user's program: the gate of its room, the supervisor, what holds its input open.
# $1 mark · $2 signal · $3 the name of the gate, or - · then pids
tell() {
  known=' ' told=1
  mark=$1 signal=$2 gate=$3
  shift 3
  others=" $* "
  members "$mark"
  for pid in $pids; do
    case $others in *" $pid "*) continue ;; esac
    read -r line 2>/dev/null <"/proc/$pid/stat" || continue
    case ${line%) *} in *"($gate") continue ;; esac
    kill -"$signal" "$pid" 2>/dev/null && told=0  # some may have ended since we looked
  done
  return "$told"
}

# A gate must not fall while those behind it say a last word: it goes with them, or by force.
# $1 mark · $2 how many naps to wait between asking and forcing · $3 the name of the gate, or -
end() {
  naps=0
  tell "$1" TERM "$3"
  [ -n "$pids" ] || return 0
  kill -CONT $pids 2>/dev/null
  while some_alive && [ "$naps" -lt "$2" ]; do
    nap
    naps=$((naps + 1))
  done
  naps=0
  while members "$1" && [ -n "$pids" ]; do
    kill -KILL $pids 2>/dev/null
    nap
    naps=$((naps + 1))
    [ "$naps" -lt 50 ] || return 1
  done
  for pid in $known; do
    [ ! -e "pipes.$pid" ] || rm -rf "pipes.$pid"  # it would have done so itself
  done
}

# Its supervisor notes how it ended, unless it had to go the same way.
end_process() {
  end "TOOLFOLD_RUN=process.$1." "$2" "$3" || return 1
  [ "$known" = ' ' ] || [ -e "processes/$1/code" ] || echo 137 >"processes/$1/code"
}

tell_process() {
  read -r supervisor _ <"processes/$1/pid" && read -r holder <"processes/$1/holder" || return 1
  tell "TOOLFOLD_RUN=process.$1." "$2" "$3" "$supervisor" "$holder"
}

# Until a background process has taken over what its task left: we may be gone right after. Fails where it has not.
begun() {
  naps=0
  while [ ! -e "$tasks/begun.$1" ] && [ ! -e "processes/$1/code" ] && [ "$naps" -lt 300 ]; do
    nap
    naps=$((naps + 1))
  done
  [ -e "processes/$1/pid" ] || [ -e "processes/$1/code" ] || echo 126 >"processes/$1/code"
  rm "$tasks/begun.$1" 2>/dev/null
}

# Sets `born`, when a process began: together with its number, this names it for good.
birth() {
  born=
  read -r line 2>/dev/null <"/proc/$1/stat" || return 0
  set -f
  set -- ${line##*) }
  set +f
  shift 19
  born=$1
}

# Of a log that is too large, half of what may be stays. Its process writes to the end, wherever that is.
# $1 the process · $2 the size of its log
shorten() {
  mkdir "$1/shortening" 2>/dev/null || return 0  # somebody is at it
  tail -c "$((largest / 2))" "$1/log" >"$1/log.new" && : >"$1/log" && cat "$1/log.new" >>"$1/log"
  rm -f "$1/log.new"
  dropped=$((dropped + $2 - largest / 2)) size=$((largest / 2))
  echo "$dropped" >"$1/dropped.new" && mv "$1/dropped.new" "$1/dropped"
  rmdir "$1/shortening"
}

# One line a process: name, state, exit code or -, how many bytes it wrote, how many of the first are gone.
list() {
  sizes=" $(wc -c $ours/log 2>/dev/null | tr -s '\n ' '  ')"
  for each in $ours/about; do
    [ -e "$each" ] || continue
    each=${each%/about}
    state=running code=- dropped=0 size=${sizes%%" $each/log "*}
    size=${size##* }
    [ ! -e "$each/dropped" ] || read -r dropped <"$each/dropped"
    case $dropped in '' | *[!0-9]*) dropped=0 ;; esac
    [ "${size:-0}" -le "$largest" ] || shorten "$each" "$size"
    if [ -e "$each/code" ]; then
      state=ended
      read -r code <"$each/code"
    elif [ -e "$each/pid" ]; then
      read -r pid began <"$each/pid"
      birth "$pid"
      [ "$began" = "$born" ] || state=lost
    fi
    case $code in - | [0-9] | [0-9][0-9] | [0-9][0-9][0-9]) ;; *) code=1 ;; esac
    echo "$1 ${each#processes/} $state $code $((dropped + ${size:-0})) $dropped"
  done
}

# Those that ended a week ago, and all but the last few hundred.
forget_the_old() {
  for each in $(find $ours/code -mtime +7) $(ls -t $ours/code | tail -n +257); do
    rm -rf "${each%/code}"
  done
}

# What guards left in memory that were killed together with their clients. Others may write there, too.
forget_the_dead() {
  for each in /dev/shm/toolfold.*; do
    [ -n "$whole" ] && own "$each" && [ -n "$(find "$each" -prune -mtime +7)" ] || continue
    grep -qsF -- "${each##*.}" /proc/[0-9]*/cmdline || rm -rf "$each"
  done
}

# Whether it is a folder of ours, and no way to one that somebody else could turn.
own() { [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ]; }

# In memory where we can: what a command exports may be secret, and disks are slow to replace a file. Commands
# write below `tasks`; what we give them lies beside it, where they may have no right to write.
memory=/dev/shm/toolfold.$client
mkdir "$memory" 2>/dev/null || own "$memory" || memory=$1/memory.$client
tasks=$memory/tasks
mkdir -p "$tasks" || exit 1
script=$(command -v script) && script --version 2>/dev/null | grep -qF util-linux || script=-
echo "ready $tasks $(command -v bash || command -v sh) $(command -v setsid || echo -) $script"
{ forget_the_old; forget_the_dead; } 2>/dev/null &
while read ${patience:+-t "$patience"} -r number verb what more; do
  [ "$verb" != beat ] || { echo "$number done 0"; continue; }
  {
    case $verb in
      end) end "TOOLFOLD_RUN=$client.$what." $more ;;
      tell) tell "TOOLFOLD_RUN=$client.$what." $more ;;
      end-process) end_process "$what" $more ;;
      tell-process) tell_process "$what" $more ;;
      begun) begun "$what" ;;
      list) list "$number" ;;
    esac
    echo "$number done $?"
    [ "$verb" != begun ] || forget_the_old 2>/dev/null
  } &
done
end "TOOLFOLD_RUN=$client." 20 -
rm -rf "$memory"
