"""What code of another language does, as far as it is read. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from toolfold.approval.shell.words import Word
from toolfold.approval.verdict import Effect

__all__ = ["Foreign"]


@dataclass(frozen=True, slots=True)
class Foreign:
    """Shell code that the code hands to a shell, and what it does itself."""

    scripts: tuple[Word, ...] = ()
    effects: tuple[Effect, ...] = ()
