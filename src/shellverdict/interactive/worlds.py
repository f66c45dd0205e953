"""What may be going on in a process: which programs wait for its input, innermost last, and what they know.

A program that was started may have failed, a word that ends one may have been redefined, a line may have
been taken by somebody else. Each possibility is a `World`; text is judged in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shellverdict.interactive.session_reader import WaitingProgram
from shellverdict.shell.reading import ExecutionContext
from shellverdict.shell.state import ShellState

__all__ = ["MAX_WORLDS", "Frame", "World", "merge_worlds"]

MAX_WORLDS = 24


@dataclass(slots=True)
class Frame:
    """One program that reads lines."""

    language: str
    state: ShellState
    context: ExecutionContext
    name: str = ""
    expands_history: bool = False
    doubtful: bool = False
    """Whether each line may have been taken by another program, so that the old state may still hold."""
    pending: str = ""
    """Lines of a shell that do not make a complete command yet."""
    waiting: bool = False
    """Whether some of them were written before the write that is judged."""
    given: list[str] = field(default_factory=list)
    """Lines of another language that earlier writes brought."""
    new: list[str] = field(default_factory=list)
    unclear: set[str] = field(default_factory=set)
    """Names in text that could not be read: they may have been given any meaning."""

    @classmethod
    def of(cls, prompt: WaitingProgram, *, pty: bool) -> Frame:
        shell = prompt.language == "sh"
        return cls(
            prompt.language,
            prompt.state,
            prompt.context,
            prompt.name,
            expands_history=shell and (pty or prompt.expands_history),
        )

    def copy(self) -> Frame:
        return replace(
            self,
            state=self.state.copy(),
            given=list(self.given),
            new=list(self.new),
            unclear=set(self.unclear),
        )

    @property
    def signature(self) -> object:
        """All that must be equal for two frames to be merged."""
        return (self.language, self.doubtful, self.pending, tuple(self.given), tuple(self.new))


@dataclass(slots=True)
class World:
    """The programs that wait for input, the innermost last."""

    stack: list[Frame]
    certain: bool = False
    """Whether this is the most probable one. Only there, text that cannot be read is worth a question."""

    guess: bool = False
    """Whether nothing says so: text that cannot be read there means nothing."""

    @property
    def innermost(self) -> Frame:
        return self.stack[-1]

    def copy(self, *, certain: bool = False) -> World:
        return World([frame.copy() for frame in self.stack], certain, self.guess)

    def without_innermost(self, *, certain: bool = False) -> World:
        return World([frame.copy() for frame in self.stack[:-1]], certain, self.guess)


def merge_worlds(worlds: Iterable[World]) -> list[World]:
    """Put together possibilities of the same shape; what differs between them becomes unknown."""
    found: dict[object, World] = {}
    for world in worlds:
        if not world.stack:
            continue
        key = (world.certain, world.guess, *(frame.signature for frame in world.stack))
        if key in found:
            for mine, other in zip(found[key].stack, world.stack, strict=True):
                mine.state.merge(other.state)
                mine.unclear |= other.unclear
                mine.expands_history |= other.expands_history
        else:
            found[key] = world
    return list(found.values())
