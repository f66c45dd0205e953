# Prepares a shell to run one command where its task left off, and to note where it leaves off.
# $0 a name for the shell · $1 the command, or @file that holds it · $2 the task's file
# $3 the variables given to every task · $4 where tasks begin · $5 where this command begins, if elsewhere
# $6 what marks the end, or @file to make at the beginning · $7 rows and $8 columns of the terminal, if any
# $9 whether the task is left where this ends
__toolfold_end() {
  __toolfold_code=$?
  trap - EXIT
  {
    command export TOOLFOLD_PWD="$PWD"  # which may not be changed any more; without `command` some shells end then
    command unset TOOLFOLD_RUN
    if [ -n "$__toolfold_leave" ]; then
      # Not by $$: in sandboxes, which have their own processes, that is the same in all of them.
      export -p >"$__toolfold_task.$__toolfold_mark" && mv -f "$__toolfold_task.$__toolfold_mark" "$__toolfold_task"
    fi
    printf '\036%s %s %s\036%s' "$__toolfold_mark" "$__toolfold_code" "$PWD" "$__toolfold_mark" >&9
  } 2>/dev/null
  exit "$__toolfold_code"
}
exec 9>&1 2>&1
. "${__toolfold%/*}/limits"
__toolfold_limits "$TOOLFOLD_RUN" && {
  ulimit -S -m "$__toolfold_soft" && ulimit -H -m "$__toolfold_hard"
} 2>/dev/null
unset -f __toolfold_limits
[ -z "$7" ] || stty rows "$7" cols "$8" 2>/dev/null
# Only values are taken up: what was made unchangeable may be a variable that every shell has, or one of ours.
set -- "$@" "$TOOLFOLD_RUN"
TOOLFOLD_PWD=$4
declare() { shift; export "$@"; }
if [ -r "$2" ]; then . "$2"; elif [ -r "$3" ]; then . "$3"; fi 2>/dev/null
unset -f declare
export TOOLFOLD_RUN="${10}"
__toolfold_task=$2 __toolfold_mark=$6 __toolfold_leave=$9
cd -- "$TOOLFOLD_PWD" 2>/dev/null || {
  [ -n "$5" ] || echo "toolfold: the folder $TOOLFOLD_PWD is gone; this runs in $4"
  cd -- "$4" || exit 125
}
unset TOOLFOLD_PWD __toolfold_soft __toolfold_hard
[ -z "$5" ] || cd -- "$5" 2>/dev/null || {
  echo "There is no directory $5 to be entered from $PWD, so nothing was run. Make it first, or name another one."
  case $6 in @*) ;; *) printf '\036%s -1 %s\036%s' "$6" "$PWD" "$6" ;; esac
  exit 125
}
case $6 in
  @*) : >"${6#@}" ;;
  *) trap __toolfold_end EXIT ;;
esac
case $1 in
  @*) __toolfold_text=$(cat -- "${1#@}") || exit 125 ;;
  *) __toolfold_text=${1#=} ;;
esac
# What the command is may not change how its end is noted.
readonly __toolfold_task __toolfold_mark __toolfold_leave
case ${BASH_VERSION:-} in ?*) readonly -f __toolfold_end ;; esac
set --
