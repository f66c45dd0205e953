"""Analysis of shell command lines without running them."""
