# Marks the processes of a run by a resource limit that Linux stores but does not enforce: RLIMIT_RSS, the resident
# set size. A process that clears its environment still has it.
# $1 run identifier, as in TOOLFOLD_RUN; only the client part for all runs of a client. Sets __toolfold_hard and
# __toolfold_soft (empty for any), in kilobytes, far above what a program would treat as a real limit.
__toolfold_limits() {
  __toolfold_hard=${1%%.*} __toolfold_soft=${1#*.}
  __toolfold_hard=${__toolfold_hard%????} __toolfold_soft=${__toolfold_soft%.}
  case $1 in process.*) __toolfold_hard=0 __toolfold_soft=0x${__toolfold_soft#p} ;; esac
  case ${__toolfold_hard}${__toolfold_soft#0x} in *[!0-9a-f]*) return 1 ;; esac
  __toolfold_hard=$(((1 << 52) + 0x$__toolfold_hard))
  [ -z "$__toolfold_soft" ] || __toolfold_soft=$(((1 << 51) + __toolfold_soft))
}
