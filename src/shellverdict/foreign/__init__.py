"""Code of other languages inside a command: what it hands to a shell, and what it does by itself."""

from __future__ import annotations

from shellverdict.foreign.nouns import Foreign
from shellverdict.foreign.reading import read_foreign

__all__ = ["Foreign", "read_foreign"]
