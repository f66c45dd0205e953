"""The tree a shell command is read into: words in parts, commands, and what groups them. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "NOTHING",
    "Arithmetic",
    "Array",
    "Assignment",
    "Branch",
    "Case",
    "Chain",
    "For",
    "Function",
    "Group",
    "Literal",
    "Loop",
    "Node",
    "Part",
    "Pipeline",
    "Process",
    "Redirection",
    "Script",
    "Simple",
    "Statement",
    "Substitution",
    "Variable",
    "WordNode",
]


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name` or `${…}`: `prefix` is `!` or `#`; `operator` and its words as written."""

    name: str
    quoted: bool = False
    prefix: str = ""
    index: tuple[Part, ...] | None = None
    operator: str = ""
    argument: tuple[Part, ...] = ()
    second: tuple[Part, ...] | None = None


@dataclass(frozen=True, slots=True)
class Substitution:
    body: Script
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    body: Script
    writes: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    parts: tuple[Part, ...]


Part = Literal | Variable | Substitution | Process | Arithmetic


@dataclass(frozen=True, slots=True)
class WordNode:
    parts: tuple[Part, ...]
    start: int
    end: int

    @property
    def plain(self) -> str | None:
        """The word where it was typed bare, as reserved words and aliases must be."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal) and not self.parts[0].quoted:
            return self.parts[0].text
        return None


@dataclass(frozen=True, slots=True)
class Array:
    words: tuple[WordNode, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    name: str
    value: tuple[Part, ...] | Array
    index: tuple[Part, ...] | None = None
    adds: bool = False


@dataclass(slots=True)
class Redirection:
    """A redirection; the body of a here-document is filled in when its line has ended."""

    operator: str
    target: tuple[Part, ...]
    descriptor: str = ""
    delimiter: str = ""
    expands: bool = True


@dataclass(frozen=True, slots=True)
class Simple:
    assignments: tuple[Assignment, ...]
    words: tuple[WordNode | Assignment, ...]
    redirects: tuple[Redirection, ...]
    start: int
    end: int
    source: str  # the text that the places are in


@dataclass(frozen=True, slots=True)
class Pipeline:
    stages: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """`first && second || third …`: each link with the sign before it."""

    first: Node
    links: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`{ … }`, `( … )`, `(( … ))`, `[[ … ]]`: `words` are those of the last two."""

    body: Script
    redirects: tuple[Redirection, ...] = ()
    own_shell: bool = False
    words: tuple[WordNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`: conditions and bodies in turn; the last body may have no condition."""

    arms: tuple[tuple[Script | None, Script], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`while`, `until`, `for ((…))`."""

    condition: Script
    body: Script
    words: tuple[WordNode, ...] = ()


@dataclass(frozen=True, slots=True)
class For:
    name: str
    words: tuple[WordNode, ...] | None
    body: Script


@dataclass(frozen=True, slots=True)
class Case:
    subject: WordNode
    arms: tuple[tuple[tuple[WordNode, ...], Script], ...]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Node


Node = Simple | Pipeline | Chain | Group | Branch | Loop | For | Case | Function


@dataclass(frozen=True, slots=True)
class Statement:
    node: Node
    background: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    statements: tuple[Statement, ...] = ()


NOTHING = Script()
