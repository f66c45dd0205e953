# Names what belongs to a run by a limit that the system notes for every process and never applies: how much of
# its memory may be resident. A process that clears its environment still has it.
# $1 the run, as in TOOLFOLD_RUN; all of a client's where it ends with the client. Sets, in kilobytes and far above
# what any program would take for little, __toolfold_soft, empty for any, and __toolfold_hard.
__toolfold_limits() {
  __toolfold_hard=${1%%.*} __toolfold_soft=${1#*.}
  __toolfold_hard=${__toolfold_hard%????} __toolfold_soft=${__toolfold_soft%.}
  case $1 in process.*) __toolfold_hard=0 __toolfold_soft=0x${__toolfold_soft#p} ;; esac
  case ${__toolfold_hard}${__toolfold_soft#0x} in *[!0-9a-f]*) return 1 ;; esac
  __toolfold_hard=$(((1 << 52) + 0x$__toolfold_hard))
  [ -z "$__toolfold_soft" ] || __toolfold_soft=$(((1 << 51) + __toolfold_soft))
}
