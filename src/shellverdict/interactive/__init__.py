"""Judging text that is written to a running process.

Such text means nothing by itself: `f` runs whatever an earlier write defined. `process_input` holds the whole
input of a process; `replay` goes through it in the languages of the programs that may read it.
"""
