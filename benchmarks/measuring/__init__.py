"""Parts of `benchmarks/retrieval.py`: data sets, peers, search modes, speed, need of a tool, report."""
