"""Which reader understands which language."""

from __future__ import annotations

from toolfold.approval.foreign.nouns import Foreign
from toolfold.approval.shell.words import Word

__all__ = ["read_foreign"]


def read_foreign(code: Word, language: str) -> Foreign:
    """What `code` in `language` does; nothing where the language is not known."""
    del code, language
    return Foreign()
