"""Approval of tool calls: decides, as the last step before a call runs, whether it may.

The package `shellverdict` judges commands. `call_analysis` analyzes a whole call, `chain` makes the
decisions that need no answer, `smart` and `prompting` ask a model or a person, `audit` records the
decisions, and every call passes through `gate`.
"""
