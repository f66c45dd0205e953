"""Finding tools by what a message says. Knows nothing of models, sessions or prompts."""
