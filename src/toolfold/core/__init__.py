"""Types, errors, events, and the rules that every other package relies on; imports nothing of Toolfold."""
