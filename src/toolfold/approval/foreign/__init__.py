"""Code of other languages inside a command: what it hands to a shell, and what it does by itself."""

from __future__ import annotations

from toolfold.approval.foreign.nouns import Foreign
from toolfold.approval.foreign.reading import read_foreign

__all__ = ["Foreign", "read_foreign"]
