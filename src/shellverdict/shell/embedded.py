"""Commands inside text that is not shell code itself: settings, option values, strings of other languages.

Nobody can list every program that runs a part of its words, of its input or of a file. Where such text holds
what would be a harmful command, and a program that is not known to treat it as mere text may see it, that
command is judged as if it were run. Only the judge knows what is harmful; this module finds the candidates.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as package_files
from types import MappingProxyType
from typing import Any

from shellverdict.names import names
from shellverdict.shell.runs import Mark, Run, Stream
from shellverdict.shell.words import GAP, Word

__all__ = [
    "WrittenTexts",
    "calls_indirectly",
    "embedded_commands",
    "files_loaded_by_name",
    "language_of",
    "makes_option_file",
    "words_that_may_run",
]

MAX_CANDIDATES = 200  # different commands that are judged for one text
MAX_CANDIDATE_LENGTH = 512
MAX_TEXT_LENGTH = 16_384
MAX_TEXTS = 64  # texts that are kept for one command

_START = re.compile(
    r"(?<![\w./$~-])(?:/(?:usr/)?(?:local/)?s?bin/)?"
    r"(?:rm|unlink|shred|srm|wipefs|dd|mkfs(?:\.\w+)?|truncate|chmod|chown|find|xargs|curl|wget|nc|ncat|socat"
    r"|scp|rsync|sudo|shutdown|reboot|poweroff|crontab|kill|killall|pkill|bash|sh|eval|tee|mv|cp)"
    r"(?=(?:\\?[ \t]|[\"'],|,|\$\{IFS\}|%20))"
)
_LIST_SEPARATOR = re.compile(r"[\"']\s*,\s*(?:\w{1,20}[\s(]\s*)?[\"']")
_BLANK = re.compile(r"\\[ \t]|\$\{IFS\}|%20|\\t")
_END = re.compile(r"[\"'`)}\]>\n;|&#\\]")

# Ways of an interpreter to call what a string names, to load what was stored, or to run code in a pattern.
_INDIRECT = re.compile(
    r"methodcaller|attrgetter|__getattribute__|__dict__|__globals__|\bvars\(|\bglobals\(|getattr\("
    r"|call_user_func|\bFunction\(|Reflect\.|\.(?:call|apply)\(|\bsend\b|public_send|\bmethod\(|instance_eval"
    r"|class_eval|array_map|array_walk|usort|register_shutdown_function|ReflectionFunction|unserialize"
    r"|\(\?\??\{|pickle|marshal|Marshal|shelve|yaml\.(?:unsafe_)?load|\bdata:[\w/]+[,;]|\|\s*\Z|new Proxy"
    r"|constructor\b|\bpsub\b|breakpoint\([\"']|runsource|runcode|>>> |runIn\w*Context|\bWorker\b|\]\s*\("
    r"|[/})|]e{2}\b|\A-d\Z|\A-[Mm].*;|\{\*\}|\A\s*!|\bau(?:tocmd)?\b|job_?start|^@\w"
    r"|promisify|^define\b|\$\((?:foreach|call|eval)\b|\.ONESHELL|^\.?SHELL",
    re.MULTILINE,
)
_STARTS_PROGRAMS = re.compile("exec|[Pp]rocess|system|popen|spawn|Command")
_SHEBANG = re.compile(
    r"#!\s*\S*?(?:\benv\s+(?:-\S+\s+)*)?(python|perl|ruby|node|php|lua|tclsh|awk|sed)[\d.]*\b"
)
_BUILT_ELSEWHERE = re.compile(
    r"(?:.*/)?(?:(?:Docker|Container)file[\w.-]*|[\w.-]+\.dockerfile)\Z", re.IGNORECASE
)
_LIKE_AN_OPTION = re.compile(r"(?:.*/)?--[a-z][\w-]*=.")
_GIT_CODE = ("-c", "--template", "--exec-path", "--config-env", "--config", "-u", "--upload-pack")


@dataclass(slots=True)
class WrittenTexts:
    """Texts of one command that a later program of the same command may run."""

    texts: dict[Word, tuple[str, tuple[int, int]]] = field(
        default_factory=dict
    )  # path it is written to, span
    edits: dict[Word, tuple[int, int]] = field(default_factory=dict)  # words of programs that write files

    def note_edit(self, run: Run) -> None:
        """Keep the text given to a program that writes files: a script that runs later may hold it."""
        if _bare_name(run) in _listed("writers") and len(self.edits) < MAX_TEXTS:
            for text in (*run.argv[1:], _input(run)):
                if _START.search(text[:MAX_TEXT_LENGTH]):
                    self.edits.setdefault(text, run.span)

    def run_edited(self) -> None:
        """A script is run whose content is not known: one that was edited before, perhaps."""
        for text, span in self.edits.items():
            self.texts.setdefault(text, ("", span))
        self.edits.clear()

    def run_written(self, run: Run, files: Mapping[str, Stream]) -> None:
        """A program starts that may run a file which the command has written."""
        passive, called = _runs_no_file(run), (run.name, "-".join(run.argv[:2]))  # git-log for `git log`
        for path, stream in files.items():
            text = stream.text
            if text is None or text in self.texts or len(self.texts) >= MAX_TEXTS:
                continue
            if (not passive or path.rpartition("/")[2] in called) and _may_be_code(path, text, run):
                self.texts[text] = (path, run.span)


def embedded_commands(text: str) -> Iterator[Word]:
    """What would be commands if something ran a part of the text."""
    text, seen = text[:MAX_TEXT_LENGTH], set[str]()
    for found in _START.finditer(text):
        if len(seen) == MAX_CANDIDATES:
            return
        rest = text[found.start() : found.start() + MAX_CANDIDATE_LENGTH]
        rest = _BLANK.sub(" ", _LIST_SEPARATOR.sub(" ", rest))
        if rest[found.end() - found.start() :][:1] == ",":
            rest = rest.replace(",", " ")
        ended = _END.search(rest)
        command = rest[: ended.start()] if ended else rest
        if command.strip().strip(GAP) and command not in seen:
            seen.add(command)
            yield Word(command)


def words_that_may_run(run: Run, *, known: bool) -> Iterator[Word]:
    """The words and the input that a program may run; of one that is not `known`, the values of options."""
    if _treats_text_as_text(run):
        return
    if known:
        yield _input(run)
    for before, word in zip(run.argv, run.argv[1:], strict=False):
        if known or word.startswith("-") or before.startswith("-"):
            yield word


def calls_indirectly(code: str, language: str = "") -> bool:
    """Whether code may run a string in a way that the readers of its language do not follow."""
    code = code[:MAX_TEXT_LENGTH]
    if language in _listed("hardly_read") and _STARTS_PROGRAMS.search(code):
        return True
    return _INDIRECT.search(code) is not None


def language_of(path: str, text: str) -> str:
    """The language of a file by its name or its first line; empty where neither tells."""
    name = path.rpartition("/")[2].lower()
    if name in _table()["named"]:
        return str(_table()["named"][name])
    if found := _SHEBANG.match(text):
        return found[1].replace("tclsh", "tcl")
    return str(_table()["languages"].get(name.rpartition(".")[2], "")) if "." in name else ""


def files_loaded_by_name(run: Run, files: Mapping[str, Stream]) -> Iterator[tuple[str, frozenset[Mark]]]:
    """Files of unknown text that this program loads because of their names, and where they come from."""
    loaded = names(_table()["loads"].get(run.name, ""))
    for path, stream in files.items() if loaded else ():
        if path.rpartition("/")[2].lower() in loaded and stream.text is None:
            yield path, stream.marks - {Mark.CONFIDENTIAL}


def makes_option_file(run: Run) -> bool:
    """Whether a file is made whose name is an option, for a pattern to hand it to a program."""
    if run.name not in _listed("makes_files"):
        return False
    behind = run.argv.index(Word("--")) if "--" in run.argv else len(run.argv)
    operands = (*(word for word in run.argv[1:behind] if not word.startswith("-")), *run.argv[behind + 1 :])
    return any(_LIKE_AN_OPTION.match(word) for word in operands)


@cache
def _table() -> Mapping[str, Any]:
    text = package_files(__package__).joinpath("embedded.toml").read_text("utf-8")
    return MappingProxyType(tomllib.loads(text))


def _listed(key: str) -> frozenset[str]:
    return names(_table()[key])


def _bare_name(run: Run) -> str:
    """The name of the program without a version."""
    return run.name.rstrip("0123456789.") or run.name


def _input(run: Run) -> Word:
    """The text that flows in, as far as it is known."""
    return run.stdin.text if run.stdin is not None and run.stdin.text is not None else Word("")


def _treats_text_as_text(run: Run) -> bool:
    """Whether what the words say is never run, or is read by a reader that knows the language."""
    name = _bare_name(run)
    if name not in _listed("interpreters"):
        return name in _listed("text_programs") or run.name in _listed("text_programs")
    return not any(calls_indirectly(text) for text in (*run.argv[1:], _input(run)))


def _runs_no_file(run: Run) -> bool:
    if run.name == "git":
        told = any(word.startswith(_GIT_CODE) for word in run.argv[1:])
        return not told and not any(name.startswith("GIT_") for name in run.assigned)
    return run.name in _listed("runs_no_file") and "PATH" not in run.assigned


def _may_be_code(path: str, text: str, run: Run) -> bool:
    if path.startswith("/dev/") or _BUILT_ELSEWHERE.match(path):
        return False
    language = language_of(path, text)
    holds_command = _START.search(text[:MAX_TEXT_LENGTH]) is not None
    if not language and path.lower().endswith(tuple(_listed("documents"))):
        return holds_command and any(path.rpartition("/")[2] in word for word in run.argv[1:])
    return holds_command or language not in ("", "make")
