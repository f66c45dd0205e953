"""Recognise variables that contain secrets by their names."""

from __future__ import annotations

import re

from shellverdict.names import split_names

__all__ = ["is_secret_name"]

# TOKENS and TOKENIZERS concern language models, not secrets, and are common in scripts.
_SECRET_PART = re.compile(
    "PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|TOKEN(?![A-Z])"
)
_SECRET_LAST_WORDS = split_names("KEY PASS PAT DSN COOKIE AUTH")
_SECRET_NAMES = split_names(
    "DATABASE_URL REDIS_URL MONGO_URI MONGO_URL MONGODB_URI MONGODB_URL PGPASS MYSQL_PWD"
)


def is_secret_name(name: str) -> bool:
    """Return True if a variable of this name usually contains a password, key, token or other secret."""
    upper = name[:128].upper()
    if upper in _SECRET_NAMES or _SECRET_PART.search(upper):
        return True
    return upper.rpartition("_")[2] in _SECRET_LAST_WORDS
