"""Judge text that is written to the standard input of a running process.

Such text has no meaning by itself: `f` runs whatever an earlier write defined. `process_input` holds the
whole input of a process; `replay` interprets it in the languages of the programs that may read it.
"""
