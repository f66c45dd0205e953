"""Whether a call may run: the last question before it does.

`shell` reads a command, `effects` and `places` tell what it would do and where, `rules` name it, `judge`
gives the verdict. `subject` reads a whole call, `chain` decides what can be decided without asking, `smart`
and `asking` ask, `audit` keeps what was decided, and `station` is where every call passes.
"""
