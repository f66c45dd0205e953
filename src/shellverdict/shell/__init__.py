"""Analyze shell command lines without running them."""
