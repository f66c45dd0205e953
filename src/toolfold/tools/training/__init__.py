"""Start and monitor training runs: supervised commands on this machine, or runs of an HTTP service.

Knows nothing of models and of what is trained: a trainer is described in the configuration.
"""
