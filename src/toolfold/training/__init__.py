"""Training runs of an external trainer: a supervised command on this machine, or a service over HTTP.

Knows nothing of models and of what is trained: a trainer is described in the configuration.
"""
