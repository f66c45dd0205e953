"""Decide, just before a tool call runs, whether it needs approval, and ask a person or a model for it.

The package `shellverdict` judges commands. `call_analysis` analyzes a whole call, `chain` makes the
decisions that need no answer, `smart` and `prompting` ask a model or a person, `audit` records the
decisions, and every call passes through `gate`.
"""
