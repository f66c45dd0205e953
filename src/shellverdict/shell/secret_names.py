"""Which variables hold what nobody else should know, told from their names alone."""

from __future__ import annotations

import re

from shellverdict.names import names

__all__ = ["secret_name"]

# TOKENS and TOKENIZERS are about text, and are set in every script that asks a model something.
_INSIDE = re.compile(
    "PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|TOKEN(?![A-Z])"
)
_LAST_WORDS = names("KEY PASS PAT DSN COOKIE AUTH")
_WHOLE_NAMES = names("DATABASE_URL REDIS_URL MONGO_URI MONGO_URL MONGODB_URI MONGODB_URL PGPASS MYSQL_PWD")


def secret_name(name: str) -> bool:
    """Whether a variable of this name holds what nobody else should know."""
    upper = name[:128].upper()
    if upper in _WHOLE_NAMES or _INSIDE.search(upper):
        return True
    return upper.rpartition("_")[2] in _LAST_WORDS
