# Runs as long as its client. Terminates and signals commands on request, reports the state of background
# processes and, when the client is gone, terminates all of its foreground commands.
# Starts in the state directory, $1. $2 client identifier, in the environment of all its commands
# $3 seconds without a heartbeat after which the client counts as gone, empty for never · $4 maximum size of a log
trap '' HUP INT TERM PIPE
. ./shell/limits
client=$2 silence_limit= max_log=$4
if [ -n "$3" ] && (echo | read -t 1 -r line) 2>/dev/null; then silence_limit=$3; fi

# Directories of background processes. Other names, which may contain spaces, are ignored.
digit='[0-9a-f]'
ours=processes/p$digit$digit$digit$digit$digit$digit$digit$digit

nap() { sleep 0.03 2>/dev/null || sleep 1; }

# Prints a /proc file for each process with the mark. Some versions of grep stop at a NUL byte.
marked_files() {
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

# Sets `pids`: processes with the mark, members of the sessions they lead, and their descendants, without zombies.
# `known` holds the processes of earlier calls, whose descendants belong to the command as well.
find_members() {
  pids=' ' marked=' '
  for file in $(marked_files "$1"); do
    file=${file#/proc/}
    marked="$marked${file%/*} "
  done
  grown=yes
  all=$(cat /proc/[0-9]*/stat 2>/dev/null | cut -c 1-80)  # shells are slow with long lines
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

# Succeeds if one of `pids` exists and is no zombie.
some_alive() {
  for pid in $pids; do
    read -r line 2>/dev/null <"/proc/$pid/stat" || continue
    case ${line##*) } in [ZX]*) ;; *) return 0 ;; esac
  done
  return 1
}

# Sends a signal to the processes of a command, but not to the sandbox wrapper, the supervisor or the input holder.
# $1 mark · $2 signal · $3 process name of the sandbox wrapper, or - · then pids to skip
send_signal() {
  known=' ' sent=1
  mark=$1 signal=$2 gate=$3
  shift 3
  others=" $* "
  find_members "$mark"
  for pid in $pids; do
    case $others in *" $pid "*) continue ;; esac
    read -r line 2>/dev/null <"/proc/$pid/stat" || continue
    case ${line%) *} in *"($gate") continue ;; esac
    kill -"$signal" "$pid" 2>/dev/null && sent=0  # some may have ended meanwhile
  done
  return "$sent"
}

# Terminates the processes of a command: SIGTERM first, SIGKILL later. The sandbox wrapper gets no SIGTERM, because
# the programs inside may still be cleaning up: it exits with them, or by SIGKILL.
# $1 mark · $2 number of naps between SIGTERM and SIGKILL · $3 process name of the sandbox wrapper, or -
terminate() {
  naps=0
  send_signal "$1" TERM "$3"
  [ -n "$pids" ] || return 0
  kill -CONT $pids 2>/dev/null
  while some_alive && [ "$naps" -lt "$2" ]; do
    nap
    naps=$((naps + 1))
  done
  naps=0
  while find_members "$1" && [ -n "$pids" ]; do
    kill -KILL $pids 2>/dev/null
    nap
    naps=$((naps + 1))
    [ "$naps" -lt 50 ] || return 1
  done
  for pid in $known; do
    [ ! -e "pipes.$pid" ] || rm -rf "pipes.$pid"  # what pipe.sh would have removed itself
  done
}

# Its supervisor stores the exit code, unless it was killed as well.
terminate_process() {
  terminate "TOOLFOLD_RUN=process.$1." "$2" "$3" || return 1
  [ "$known" = ' ' ] || [ -e "processes/$1/code" ] || echo 137 >"processes/$1/code"
}

signal_process() {
  read -r supervisor _ <"processes/$1/pid" && read -r holder <"processes/$1/holder" || return 1
  send_signal "TOOLFOLD_RUN=process.$1." "$2" "$3" "$supervisor" "$holder"
}

# Waits until a background process has loaded its task's state, because this guard may exit right after. Fails if it has not.
wait_started() {
  naps=0
  while [ ! -e "$tasks/begun.$1" ] && [ ! -e "processes/$1/code" ] && [ "$naps" -lt 300 ]; do
    nap
    naps=$((naps + 1))
  done
  [ -e "processes/$1/pid" ] || [ -e "processes/$1/code" ] || echo 126 >"processes/$1/code"
  rm "$tasks/begun.$1" 2>/dev/null
}

# Sets `born`, the start time of a process: with the PID it identifies the process uniquely.
read_start_time() {
  born=
  read -r line 2>/dev/null <"/proc/$1/stat" || return 0
  set -f
  set -- ${line##*) }
  set +f
  shift 19
  born=$1
}

# Truncates a log that is too large to its last half. The process appends to it, so it continues at the new end.
# $1 directory of the process · $2 size of its log
truncate_log() {
  mkdir "$1/shortening" 2>/dev/null || return 0  # another guard is doing it
  tail -c "$((max_log / 2))" "$1/log" >"$1/log.new" && : >"$1/log" && cat "$1/log.new" >>"$1/log"
  rm -f "$1/log.new"
  dropped=$((dropped + $2 - max_log / 2)) size=$((max_log / 2))
  echo "$dropped" >"$1/dropped.new" && mv "$1/dropped.new" "$1/dropped"
  rmdir "$1/shortening"
}

# Prints one line per process: name, state, exit code or -, bytes written, bytes dropped from the start.
list_processes() {
  sizes=" $(wc -c $ours/log 2>/dev/null | tr -s '\n ' '  ')"
  for each in $ours/about; do
    [ -e "$each" ] || continue
    each=${each%/about}
    state=running code=- dropped=0 size=${sizes%%" $each/log "*}
    size=${size##* }
    [ ! -e "$each/dropped" ] || read -r dropped <"$each/dropped"
    case $dropped in '' | *[!0-9]*) dropped=0 ;; esac
    [ "${size:-0}" -le "$max_log" ] || truncate_log "$each" "$size"
    if [ -e "$each/code" ]; then
      state=ended
      read -r code <"$each/code"
    elif [ -e "$each/pid" ]; then
      read -r pid began <"$each/pid"
      read_start_time "$pid"
      [ "$began" = "$born" ] || state=lost
    fi
    case $code in - | [0-9] | [0-9][0-9] | [0-9][0-9][0-9]) ;; *) code=1 ;; esac
    echo "$1 ${each#processes/} $state $code $((dropped + ${size:-0})) $dropped"
  done
}

# Removes processes that ended a week ago, and all but the last few hundred.
remove_old_processes() {
  for each in $(find $ours/code -mtime +7) $(ls -t $ours/code | tail -n +257); do
    rm -rf "${each%/code}"
  done
}

# Removes directories in memory of guards that were killed with their clients. Other users may write there, too.
remove_dead_memory() {
  for each in /dev/shm/toolfold.*; do
    [ -n "$whole" ] && is_own_directory "$each" && [ -n "$(find "$each" -prune -mtime +7)" ] || continue
    grep -qsF -- "${each##*.}" /proc/[0-9]*/cmdline || rm -rf "$each"
  done
}

# Succeeds if it is a directory of this user and no symbolic link, which another user could redirect.
is_own_directory() { [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ]; }

# In memory if possible: exported variables may be secret, and replacing a file on disk is slow. Commands write
# below `tasks`; files that they only read are beside it, where a sandbox may forbid writing.
memory=/dev/shm/toolfold.$client
mkdir "$memory" 2>/dev/null || is_own_directory "$memory" || memory=$1/memory.$client
tasks=$memory/tasks
mkdir -p "$tasks" || exit 1
script=$(command -v script) && script --version 2>/dev/null | grep -qF util-linux || script=-
echo "ready $tasks $(command -v bash || command -v sh) $(command -v setsid || echo -) $script"
{ remove_old_processes; remove_dead_memory; } 2>/dev/null &
while read ${silence_limit:+-t "$silence_limit"} -r number verb what more; do
  [ "$verb" != beat ] || { echo "$number done 0"; continue; }
  {
    case $verb in
      end) terminate "TOOLFOLD_RUN=$client.$what." $more ;;
      tell) send_signal "TOOLFOLD_RUN=$client.$what." $more ;;
      end-process) terminate_process "$what" $more ;;
      tell-process) signal_process "$what" $more ;;
      begun) wait_started "$what" ;;
      list) list_processes "$number" ;;
    esac
    echo "$number done $?"
    [ "$verb" != begun ] || remove_old_processes 2>/dev/null
  } &
done
terminate "TOOLFOLD_RUN=$client." 20 -
rm -rf "$memory"
