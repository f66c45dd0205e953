"""Tool retrieval: rank the tools of a catalog for a message. Knows nothing of models, sessions or prompts."""
