"""Decide whether a call may run, and keep secrets out of logs and results."""
