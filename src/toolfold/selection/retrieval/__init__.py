"""Tool retrieval: rank the tools of a catalog for a message, independent of models, sessions and prompts."""
