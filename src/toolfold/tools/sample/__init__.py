"""The simulated services of the demo, tutorials and benchmarks."""
