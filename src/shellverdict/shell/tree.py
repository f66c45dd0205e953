"""Syntax tree of a shell script: words with their parts, commands, and compound commands. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EMPTY_SCRIPT",
    "AndOrList",
    "ArithmeticExpansion",
    "Array",
    "Assignment",
    "CaseStatement",
    "CommandGroup",
    "CommandSubstitution",
    "ForLoop",
    "FunctionDefinition",
    "IfStatement",
    "Literal",
    "Node",
    "ParameterExpansion",
    "Part",
    "Pipeline",
    "ProcessSubstitution",
    "Redirection",
    "Script",
    "SimpleCommand",
    "Statement",
    "WhileLoop",
    "WordNode",
]


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class ParameterExpansion:
    """Parameter expansion: `$name`, or `${…}` with a `prefix` (`!`, `#`) or an `operator` such as `:-`."""

    name: str
    quoted: bool = False
    prefix: str = ""
    index: tuple[Part, ...] | None = None
    operator: str = ""
    argument: tuple[Part, ...] = ()
    replacement: tuple[Part, ...] | None = None


@dataclass(frozen=True, slots=True)
class CommandSubstitution:
    body: Script
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSubstitution:
    body: Script
    writes: bool


@dataclass(frozen=True, slots=True)
class ArithmeticExpansion:
    parts: tuple[Part, ...]


Part = Literal | ParameterExpansion | CommandSubstitution | ProcessSubstitution | ArithmeticExpansion


@dataclass(frozen=True, slots=True)
class WordNode:
    parts: tuple[Part, ...]
    start: int
    end: int

    @property
    def bare_text(self) -> str | None:
        """Return the text of a word if it has no quotes or expansions, else None."""
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
    appends: bool = False


@dataclass(slots=True)
class Redirection:
    """A redirection as parsed, with the body of its here-document if it has one."""

    operator: str
    target: tuple[Part, ...]
    descriptor: str = ""
    delimiter: str = ""
    expands: bool = True


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    assignments: tuple[Assignment, ...]
    words: tuple[WordNode | Assignment, ...]
    redirects: tuple[Redirection, ...]
    start: int
    end: int
    source: str  # the text that `start` and `end` refer to


@dataclass(frozen=True, slots=True)
class Pipeline:
    stages: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AndOrList:
    """List of commands joined by `&&` and `||`, each with the operator before it."""

    first: Node
    links: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Group `{ … }`, `( … )`, `(( … ))` or `[[ … ]]`; `words` has the operands of the last two."""

    body: Script
    redirects: tuple[Redirection, ...] = ()
    in_subshell: bool = False
    words: tuple[WordNode, ...] = ()


@dataclass(frozen=True, slots=True)
class IfStatement:
    """An `if` statement as pairs of condition and body; the condition of `else` is None."""

    arms: tuple[tuple[Script | None, Script], ...]


@dataclass(frozen=True, slots=True)
class WhileLoop:
    """A `while`, `until` or `for ((…))` loop; `words` has the arithmetic expressions of `for ((…))`."""

    condition: Script
    body: Script
    words: tuple[WordNode, ...] = ()


@dataclass(frozen=True, slots=True)
class ForLoop:
    name: str
    words: tuple[WordNode, ...] | None
    body: Script


@dataclass(frozen=True, slots=True)
class CaseStatement:
    subject: WordNode
    arms: tuple[tuple[tuple[WordNode, ...], Script], ...]


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    name: str
    body: Node


Node = (
    SimpleCommand
    | Pipeline
    | AndOrList
    | CommandGroup
    | IfStatement
    | WhileLoop
    | ForLoop
    | CaseStatement
    | FunctionDefinition
)


@dataclass(frozen=True, slots=True)
class Statement:
    node: Node
    background: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    statements: tuple[Statement, ...] = ()


EMPTY_SCRIPT = Script()
