"""The parts of `benchmarks/retrieval.py`: sets, peers, our modes, speed, need of a tool, report."""
