"""Start and follow training runs: of a supervised command on this machine, or of an HTTP service.

Knows nothing of models and of what is trained: a trainer is described in the configuration.
"""
