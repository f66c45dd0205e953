"""Define the result of analyzing code inside a command, and the builder with which analyzers create it.

Most operations on files and processes have a shell equivalent (`shutil.rmtree(x)` is `rm -rf x`). They are
recorded as that shell command, so that the same rules judge both. Only operations without a shell equivalent
are recorded as effects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from shellverdict.shell.words import ANY, GAP, STAR, Taint, Word, unknown_word
from shellverdict.verdict import CommandEffect, EffectKind

__all__ = [
    "HOME",
    "SHELLS",
    "AnalysisBuilder",
    "CodeAnalysis",
    "find_remote_url",
    "is_bare_shell",
    "is_connected_shell",
    "quote_word",
]

HOME = "\ue0fe"  # placeholder for the home directory in constructed text

_MAX_ENTRIES = 64  # scripts, and as many effects; code with more is reported as unreadable

# Files that the tool that created them creates again on its next run.
_GENERATED_SUFFIXES = (".pyc", ".pyo", ".py[co]", ".o", ".class", ".tmp", ".swp")
_TOO_MUCH_CODE = CommandEffect(
    EffectKind.UNREADABLE, Word("code beyond the analysis limit"), detail="code that cannot be analyzed"
)

SHELLS = frozenset(
    {"sh", "bash", "zsh", "ksh", "dash", "ash", "fish", "cmd", "cmd.exe", "powershell", "pwsh", "csh", "tcsh"}
)


@dataclass(frozen=True, slots=True)
class CodeAnalysis:
    """Result of analyzing code: the shell scripts that the code runs, and its direct effects."""

    scripts: tuple[Word, ...] = ()
    effects: tuple[CommandEffect, ...] = ()


@dataclass(slots=True)
class AnalysisBuilder:
    """Builds a `CodeAnalysis`: collects shell scripts and effects without duplicates, up to a limit."""

    scripts: dict[Word, None] = field(default_factory=dict)
    effects: dict[CommandEffect, None] = field(default_factory=dict)
    workdir: str = ""  # set by os.chdir; later commands run there

    def build(self) -> CodeAnalysis:
        return CodeAnalysis(tuple(self.scripts), tuple(self.effects))

    def add_script(self, text: str) -> None:
        """Add a line of shell code that the analyzed code runs."""
        text = text.replace(HOME, "$HOME")
        line = Word(f"cd {quote_word(self.workdir)}; {text}" if self.workdir else text)
        if len(self.scripts) < _MAX_ENTRIES and text.strip():
            self.scripts[line] = None
        elif text.strip() and line not in self.scripts:
            self.effects[_TOO_MUCH_CODE] = None

    def add_command(self, *words: str) -> None:
        """Add a program that the analyzed code starts without a shell, and the program's arguments.

        Glob patterns of the language are kept as unquoted shell patterns.
        """
        if words:
            self.add_script(" ".join(quote_word(word) for word in words))

    def add_delete(self, path: str, *, tree: bool = False) -> None:
        self.add_command("rm", *(["-rf"] if tree else ["-f"]), "--", path)

    def add_delete_each(self, pattern: str) -> None:
        """Add the deletion of each file that matches a glob pattern, for code that deletes in a loop."""
        directory, _, name = pattern.rpartition("/")
        base, deep, _ = directory.partition(f"{STAR}{STAR}")
        if deep and not name.endswith(_GENERATED_SUFFIXES):
            start = base.partition(STAR)[0].rstrip("/") or ("/" if pattern[:1] == "/" else ".")
            named = "*" if GAP in name else name.replace(STAR, "*")
            self.add_command("find", start, "-name", named, "-delete")
            return
        self.add_delete(pattern)
        if not name.endswith(_GENERATED_SUFFIXES):
            self.add_command("xargs", "rm", "-f", "--", pattern)

    def add_file_upload(self, path: str, to: str) -> None:
        """Add the upload of a file to the URL `to`, which may be unknown."""
        if to == GAP:
            self.add_script(f"cat -- {quote_word(path)} | curl -d @- {GAP}")
        else:
            self.add_command("curl", "--data-binary", f"@{path}", to)

    def add_environment_upload(self, names: Iterable[str], to: str) -> None:
        """Add the upload of the named environment variables; an empty name stands for all variables."""
        for name in names:
            if name:
                self.add_script(f'curl -d "${name}" {quote_word(to)}')
            else:
                self.add_script(f"printenv | curl -d @- {quote_word(to)}")

    def add_overwrite(self, path: str) -> None:
        self.add_script(f": > {quote_word(path)}")

    def add_append(self, path: str) -> None:
        self.add_script(f": >> {quote_word(path)}")

    def add_effect(self, kind: EffectKind, target: str = "", *traits: str, detail: str = "") -> None:
        if len(self.effects) < _MAX_ENTRIES:
            target = target.replace(HOME, "~")
            self.effects[CommandEffect(kind, Word(target), frozenset(traits), detail=detail)] = None
        else:
            self.effects[_TOO_MUCH_CODE] = None

    def add_unreadable(self, text: str) -> None:
        self.add_effect(
            EffectKind.UNREADABLE, Word(text).display_text[:80], detail="code that cannot be analyzed"
        )

    def add_unread_code(self, text: str, traits: frozenset[str]) -> None:
        """Add the effect of running code whose text is unknown, because it is not in the command itself."""
        self.add_effect(
            EffectKind.RUN_UNREAD, Word(text).display_text[:80], *(traits or {Taint.UNREAD.value})
        )

    def merge(self, other: CodeAnalysis) -> None:
        for script in other.scripts:
            self.add_script(script)
        for effect in other.effects:
            self.effects[effect if len(self.effects) < _MAX_ENTRIES else _TOO_MUCH_CODE] = None


_UNQUOTED = re.compile(f"([{GAP}{STAR}{ANY}{HOME}]|{GAP}[\ufdd5-\ufdd8]+)")


def quote_word(word: str) -> str:
    """Quote one word for a shell; wildcards and placeholders for unknown text stay unquoted."""
    if not word or not _UNQUOTED.search(word):
        return shlex.quote(word)
    parts = (_quote_part(part) for part in _UNQUOTED.split(word) if part)
    return "".join(parts)


def _quote_part(part: str) -> str:
    if part == HOME:
        return '"$HOME"'
    return part if _UNQUOTED.fullmatch(part) else shlex.quote(part)


def find_remote_url(texts: Iterable[str]) -> str:
    """Return the first URL that points to another machine, or the first URL if all of them are local.

    Without any URL, the placeholder for unknown text is returned.
    """
    urls = [text for text in texts if "://" in text]
    return next((text for text in urls if not _LOCAL_URL.search(text)), urls[0] if urls else GAP)


_LOCAL_URL = re.compile(r"://(?:[^/@]*@)?(?:localhost|127\.|0\.0\.0\.0|\[::1\])")


def is_bare_shell(script: str) -> bool:
    """Return True if a shell script only starts a shell, or if its text is unknown."""
    first = script.strip().split(" ")[0].strip("'\"").rpartition("/")[2].lower()
    return (first in SHELLS and " -c" not in script) or script.strip() == unknown_word()


def is_connected_shell(script: str) -> bool:
    """Return True if code that connects to the network would turn this shell script into a reverse shell.

    The script only starts a shell or an interactive interpreter, or starts one with its streams redirected.
    """
    words = script.strip().split(" ")
    is_interactive = words[0].rpartition("/")[2].rstrip("0123456789.") in _INTERPRETERS and not any(
        word[:1] != "-" or word in ("-c", "-e", "-m", "-r") for word in words[1:]
    )
    return (
        is_interactive
        or is_bare_shell(script)
        or (is_bare_shell(words[0]) and ("<&" in script or ">&" in script))
    )


_INTERPRETERS = frozenset({"python", "ipython", "pypy", "perl", "ruby", "irb", "node", "php", "lua"})
