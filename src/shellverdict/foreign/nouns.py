"""What code of another language does, as far as it is read: the result, and a place to gather it.

Most of what code does to files and processes has a name in the shell (`shutil.rmtree(x)` is `rm -rf x`), and
is told as such a command, so that it is judged by the same rules. Only what the shell has no word for is an
effect.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from shellverdict.shell.words import ANY, GAP, STAR, Mark, Word, gap
from shellverdict.verdict import Effect, Kind

__all__ = ["HOME", "SHELLS", "Foreign", "Found", "address", "is_shell", "quoted"]

HOME = "\ue0fe"  # stands for the home directory in text that is being put together

_MOST = 64  # of each; a text with more is not read by anybody

# What is made again by the next run of the program that made it.
_GENERATED = (".pyc", ".pyo", ".py[co]", ".o", ".class", ".tmp", ".swp")
_TOO_MUCH = Effect(Kind.UNREADABLE, Word("more code than is read"), detail="code that cannot be read")

SHELLS = frozenset(
    {"sh", "bash", "zsh", "ksh", "dash", "ash", "fish", "cmd", "cmd.exe", "powershell", "pwsh", "csh", "tcsh"}
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Shell code that the code hands to a shell, and what it does itself."""

    scripts: tuple[Word, ...] = ()
    effects: tuple[Effect, ...] = ()


@dataclass(slots=True)
class Found:
    """What has been found so far, each thing once."""

    scripts: dict[Word, None] = field(default_factory=dict)
    effects: dict[Effect, None] = field(default_factory=dict)
    folder: str = ""  # where the code has gone; commands behind that run there

    @property
    def foreign(self) -> Foreign:
        return Foreign(tuple(self.scripts), tuple(self.effects))

    def script(self, text: str) -> None:
        """A line for a shell."""
        text = text.replace(HOME, "$HOME")
        line = Word(f"cd {quoted(self.folder)}; {text}" if self.folder else text)
        if len(self.scripts) < _MOST and text.strip():
            self.scripts[line] = None
        elif text.strip() and line not in self.scripts:
            self.effects[_TOO_MUCH] = None

    def command(self, *words: str) -> None:
        """A program with its words, no shell between; patterns of the language are patterns of the shell."""
        if words:
            self.script(" ".join(quoted(word) for word in words))

    def delete(self, path: str, *, tree: bool = False) -> None:
        self.command("rm", *(["-rf"] if tree else ["-f"]), "--", path)

    def delete_each(self, pattern: str) -> None:
        """Every file that matches a pattern, one after the other; nobody has seen their names."""
        folder, _, name = pattern.rpartition("/")
        base, deep, _ = folder.partition(f"{STAR}{STAR}")
        if deep and not name.endswith(_GENERATED):
            start = base.partition(STAR)[0].rstrip("/") or ("/" if pattern[:1] == "/" else ".")
            named = "*" if GAP in name else name.replace(STAR, "*")
            self.command("find", start, "-name", named, "-delete")
            return
        self.delete(pattern)
        if not name.endswith(_GENERATED):
            self.command("xargs", "rm", "-f", "--", pattern)

    def sends_file(self, path: str, to: str) -> None:
        """A file that is sent away, as far as an address is known."""
        if to == GAP:
            self.script(f"cat -- {quoted(path)} | curl -d @- {GAP}")
        else:
            self.command("curl", "--data-binary", f"@{path}", to)

    def sends_environment(self, names: Iterable[str], to: str) -> None:
        """Variables that are sent away; no name stands for all of them."""
        for name in names:
            if name:
                self.script(f'curl -d "${name}" {quoted(to)}')
            else:
                self.script(f"printenv | curl -d @- {quoted(to)}")

    def overwrite(self, path: str) -> None:
        self.script(f": > {quoted(path)}")

    def append(self, path: str) -> None:
        self.script(f": >> {quoted(path)}")

    def effect(self, kind: Kind, target: str = "", *traits: str, detail: str = "") -> None:
        if len(self.effects) < _MOST:
            target = target.replace(HOME, "~")
            self.effects[Effect(kind, Word(target), frozenset(traits), detail=detail)] = None
        else:
            self.effects[_TOO_MUCH] = None

    def unreadable(self, text: str) -> None:
        self.effect(Kind.UNREADABLE, Word(text).shown[:80], detail="code that cannot be read")

    def unread(self, text: str, traits: frozenset[str]) -> None:
        """Code is run that does not stand here."""
        self.effect(Kind.RUN_UNREAD, Word(text).shown[:80], *(traits or {Mark.UNREAD.value}))

    def merge(self, other: Foreign) -> None:
        for script in other.scripts:
            self.script(script)
        for effect in other.effects:
            self.effects[effect if len(self.effects) < _MOST else _TOO_MUCH] = None


_LOOSE = re.compile(f"([{GAP}{STAR}{ANY}{HOME}]|{GAP}[\ufdd5-\ufdd8]+)")


def quoted(word: str) -> str:
    """One word of a shell's, in quotes but for patterns, the home directory and what is not known."""
    if not word or not _LOOSE.search(word):
        return shlex.quote(word)
    parts = (_one(part) for part in _LOOSE.split(word) if part)
    return "".join(parts)


def _one(part: str) -> str:
    if part == HOME:
        return '"$HOME"'
    return part if _LOOSE.fullmatch(part) else shlex.quote(part)


def address(texts: Iterable[str]) -> str:
    """The first address of another machine among texts; this machine's own only where there is no other."""
    found = [text for text in texts if "://" in text]
    return next((text for text in found if not _LOCAL.search(text)), found[0] if found else GAP)


_LOCAL = re.compile(r"://(?:[^/@]*@)?(?:localhost|127\.|0\.0\.0\.0|\[::1\])")


def is_shell(script: str) -> bool:
    """Whether a script is nothing but a shell, or nothing that is known."""
    first = script.strip().split(" ")[0].strip("'\"").rpartition("/")[2].lower()
    return (first in SHELLS and " -c" not in script) or script.strip() == gap()
