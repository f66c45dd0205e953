"""Build all parts of a runtime, run calls through the pipeline, and serve sessions."""
