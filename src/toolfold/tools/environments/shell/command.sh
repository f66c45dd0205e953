# Prepares a shell to run one command in its task's directory, and to store that state again at the end.
# $0 name of the shell · $1 `=` and the command, or `@` and a file with it · $2 state file of the task
# $3 file with variables for every task · $4 initial directory of tasks · $5 directory of this command, if different
# $6 end mark, or `@` and a file to create at the start · $7 rows and $8 columns of the terminal, if any
# $9 not empty: store the directory and the exported variables for the task's next command
__toolfold_end() {
  __toolfold_code=$?
  trap - EXIT
  {
    command export TOOLFOLD_PWD="${__toolfold_from:-$PWD}"  # may be readonly; without `command` some shells would exit then
    command unset TOOLFOLD_RUN
    if [ -n "$__toolfold_leave" ]; then
      # Not named by $$: in sandboxes with their own PID namespace it is always the same.
      export -p >"$__toolfold_task.$__toolfold_mark" && mv -f "$__toolfold_task.$__toolfold_mark" "$__toolfold_task"
    fi
    printf '\036%s %s %s\036%s' "$__toolfold_mark" "$__toolfold_code" "${__toolfold_from:-$PWD}" "$__toolfold_mark" >&9
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
# Load only values, not attributes: a readonly variable may be a shell built-in or one used here.
set -- "$@" "$TOOLFOLD_RUN"
TOOLFOLD_PWD=$4
declare() { shift; export "$@"; }
if [ -r "$2" ]; then . "$2"; elif [ -r "$3" ]; then . "$3"; fi 2>/dev/null
unset -f declare
export TOOLFOLD_RUN="${10}"
__toolfold_task=$2 __toolfold_mark=$6 __toolfold_leave=$9
cd -- "$TOOLFOLD_PWD" 2>/dev/null || {
  [ -n "$5" ] || echo "toolfold: the directory $TOOLFOLD_PWD no longer exists; running in $4"
  cd -- "$4" || exit 125
}
unset TOOLFOLD_PWD __toolfold_soft __toolfold_hard
__toolfold_from=${5:+$PWD}  # a directory for one command does not become the task's directory
[ -z "$5" ] || cd -- "$5" 2>/dev/null || {
  echo "Cannot enter the directory $5 from $PWD, so nothing was run. Create it first, or use another one."
  case $6 in @*) ;; *) printf '\036%s -1 %s\036%s' "$6" "$PWD" "$6" ;; esac
  exit 125
}
[ "$PWD" != "$__toolfold_from" ] || __toolfold_from=
case $6 in
  @*) : >"${6#@}" ;;
  *) trap __toolfold_end EXIT ;;
esac
case $1 in
  @*) __toolfold_text=$(cat -- "${1#@}") || exit 125 ;;
  *) __toolfold_text=${1#=} ;;
esac
# The command must not change how its end is reported.
readonly __toolfold_task __toolfold_mark __toolfold_leave __toolfold_from
case ${BASH_VERSION:-} in ?*) readonly -f __toolfold_end ;; esac
set --
