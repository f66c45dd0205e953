"""Find commands inside text that is not shell code: settings, option values, strings of other languages.

No list of programs that run a part of their arguments, input or files is complete. If such text contains a
harmful command, and a program that is not known to treat it as plain text may see it, the command is judged
as if it ran. This module finds the candidates; it does not know what is harmful.
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

from shellverdict.names import split_names
from shellverdict.shell.runs import ProgramRun, Taint, TextStream
from shellverdict.shell.words import GAP, Word

__all__ = [
    "WrittenTexts",
    "detect_language",
    "detect_program_language",
    "find_embedded_commands",
    "find_files_loaded_by_name",
    "has_indirect_call",
    "has_option_like_target",
    "is_passive_program",
    "language_of_name",
    "loaded_names",
    "possible_code_words",
]

MAX_CANDIDATES = 200  # candidate commands per text
MAX_CANDIDATE_LENGTH = 512
MAX_TEXT_LENGTH = 16_384
MAX_TEXTS = 64  # recorded texts per command
MAX_TEXTS_CHARS = 250_000  # of changed files that a command may run

_COMMAND_START = re.compile(
    r"(?<![\w./$~-])(?:/(?:usr/)?(?:local/)?s?bin/)?"
    r"(?:rm|unlink|shred|srm|wipefs|dd|mkfs(?:\.\w+)?|truncate|chmod|chown|find|xargs|curl|wget|nc|ncat|socat"
    r"|scp|rsync|sudo|shutdown|reboot|poweroff|crontab|kill|killall|pkill|bash|sh|eval|tee|mv|cp"
    r"|git|gh|kubectl|helm|terraform|tofu|pulumi|aws|gcloud|az|docker|npm|npx|pip3?|cargo|gem|psql|mysql|mongosh|cat|echo"
    r"|redis-cli|dropdb|systemctl|iptables|useradd|usermod|passwd|visudo|mount|heroku|fly|vercel|wrangler)"
    r"(?=(?:\\?[ \t]|[\"'],|,|\$\{IFS\}|%20))"
)
_LIST_SEPARATOR = re.compile(r"[\"']\s*,\s*(?:\w{1,20}[\s(]\s*)?[\"']")
_ENCODED_BLANK = re.compile(r"\\[ \t]|\$\{IFS\}|%20|\\t")
_LINE_END = re.compile(r"[\"`)}\]\n;#\\]")
_COMMAND_END = re.compile(r"[\"'`)}\]>\n;|&#\\]")

# Constructs that call a function by name, load serialized objects, or run code inside a pattern.
_INDIRECT_CALL = re.compile(
    r"methodcaller|attrgetter|__getattribute__|__dict__|__globals__|\bvars\(|\bglobals\(|getattr\("
    r"|call_user_func|\bFunction\(|Reflect\.|\.(?:call|apply)\(|\bsend\b|public_send|\bmethod\(|instance_eval"
    r"|class_eval|array_map|array_walk|usort|register_shutdown_function|ReflectionFunction|unserialize"
    r"|\(\?\??\{|pickle|marshal|Marshal|shelve|yaml\.(?:unsafe_)?load|\bdata:[\w/]+[,;]|\|\s*\Z|new Proxy"
    r"|constructor\b|\bpsub\b|breakpoint\([\"']|runsource|runcode|>>> |runIn\w*Context|\bWorker\b|\]\s*\("
    r"|[/})|]e{2}\b|\A-d\Z|\A-[Mm].*;|\{\*\}|\A\s*!|\bau(?:tocmd)?\b|job_?start|^@\w"
    r"|promisify|^define\b|\$\((?:foreach|call|eval)\b|\.ONESHELL|^\.?SHELL",
    re.MULTILINE,
)
_PROCESS_CALL = re.compile("exec|[Pp]rocess|system|popen|spawn|Command")
_SHEBANG = re.compile(
    r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(python|uv|perl|ruby|node|deno|bun|php|lua|tclsh|awk|sed)[\d.]*(?=\s|$)"
)
_SHEBANG_LANGUAGES = {"tclsh": "tcl", "uv": "python", "deno": "node", "bun": "node"}
_CONTAINER_FILE = re.compile(
    r"(?:.*/)?(?:(?:Docker|Container)file[\w.-]*|[\w.-]+\.dockerfile)\Z", re.IGNORECASE
)
_OPTION_FILE_NAME = re.compile(r"(?:.*/)?--[a-z][\w-]*=.")
_GIT_CODE_OPTIONS = ("-c", "--template", "--exec-path", "--config-env", "--config", "-u", "--upload-pack")


@dataclass(slots=True)
class WrittenTexts:
    """Texts in a command line, or written by it, that a later program of the same command line may run."""

    texts: dict[Word, tuple[str, tuple[int, int]]] = field(default_factory=dict)
    """For each text, the path that it is written to, and the position of the command that may run it."""
    edits: dict[Word, tuple[int, int]] = field(default_factory=dict)
    """For each text given to a file-writing program, the position of that program's command."""

    def record_edit(self, run: ProgramRun) -> None:
        """Record text that looks like a command and is passed to a program that writes files.

        A script that runs later may contain the text.
        """
        if _name_without_version(run) in _table_names("writers") and len(self.edits) < MAX_TEXTS:
            for text in (*run.argv[1:], _input_text(run)):
                if _COMMAND_START.search(text[:MAX_TEXT_LENGTH]):
                    self.edits.setdefault(text, run.span)

    def add_edited_texts(self) -> None:
        """Treat all text that the command line wrote into files as code that may run.

        Called when a script of unknown content is run, which may be one of these files.
        """
        for text, span in self.edits.items():
            self.texts.setdefault(text, ("", span))
        self.edits.clear()

    def add_text(self, text: Word, path: str, run: ProgramRun) -> None:
        """Add the text of a file that a program may run."""
        if sum(map(len, self.texts)) + len(text) <= MAX_TEXTS_CHARS:
            self.texts.setdefault(text, (path, run.span))

    def add_written_files(self, run: ProgramRun, files: Mapping[str, TextStream]) -> None:
        """Add the texts of files that the same command line has written and that this program may run."""
        passive = is_passive_program(run)
        called = (run.name, "-".join(run.argv[:2]))  # `git log` may run a file named git-log
        for path, stream in files.items():
            text = stream.text
            if text is None or text in self.texts or len(self.texts) >= MAX_TEXTS:
                continue
            if (not passive or path.rpartition("/")[2] in called) and _can_be_code(path, text, run):
                self.texts[text] = (path, run.span)


def find_embedded_commands(text: str) -> Iterator[Word]:
    """Yield the parts of a text that look like shell commands."""
    text, seen = text[:MAX_TEXT_LENGTH], set[str]()
    for found in _COMMAND_START.finditer(text):
        if len(seen) == MAX_CANDIDATES:
            return
        rest = text[found.start() : found.start() + MAX_CANDIDATE_LENGTH]
        rest = _ENCODED_BLANK.sub(" ", _LIST_SEPARATOR.sub(" ", rest))
        if rest[found.end() - found.start() :][:1] == ",":
            rest = rest.replace(",", " ")
        ended = _COMMAND_END.search(rest)
        commands = {rest[: ended.start()] if ended else rest}
        if ended and ended[0] in "|>":  # the text after it may decide: `curl … | sh`, `echo … >> ~/.bashrc`
            commands.add(_LINE_END.split(rest, maxsplit=1)[0])
        for command in commands - seen:
            if command.strip().strip(GAP):
                seen.add(command)
                yield Word(command)


def possible_code_words(run: ProgramRun, *, known: bool) -> Iterator[Word]:
    """Yield the arguments, and the standard input, that a program may run as code.

    `known` means that the program is known to run others; otherwise only option values are yielded.
    """
    if _is_text_only(run):
        return
    if known:
        yield _input_text(run)
    for before, word in zip(run.argv, run.argv[1:], strict=False):
        if known or word.startswith("-") or before.startswith("-"):
            yield word


def has_indirect_call(code: str, language: str = "") -> bool:
    """Return True if code may run a string in a way that the analysis of its language does not follow."""
    code = code[:MAX_TEXT_LENGTH]
    if language in _table_names("hardly_read") and _PROCESS_CALL.search(code):
        return True
    return _INDIRECT_CALL.search(code) is not None


def detect_language(path: str, text: str) -> str:
    """Return the language of a file, judged by its name or first line; empty if the language is unknown."""
    name = path.rpartition("/")[2].lower()
    if name in _load_table()["named"]:
        return str(_load_table()["named"][name])
    return _language_of_shebang(text) or language_of_name(name)


def detect_program_language(text: str) -> str:
    """Return the language of a file that is run as a program, whatever its name."""
    return _language_of_shebang(text) or "sh"


def _language_of_shebang(text: str) -> str:
    found = _SHEBANG.match(text)
    return _SHEBANG_LANGUAGES.get(found[1], found[1]) if found else ""


def language_of_name(path: str) -> str:
    """Return the language of a file by the ending of its name; empty if that tells nothing."""
    name = path.rpartition("/")[2].lower()
    return str(_load_table()["languages"].get(name.rpartition(".")[2], "")) if "." in name else ""


def loaded_names(program: str) -> list[str]:
    """Return the files that a program interprets without naming them; `@LANGUAGE` for all of a language."""
    return _loads_by_program().get(program, [])


def find_files_loaded_by_name(
    run: ProgramRun, files: Mapping[str, TextStream]
) -> Iterator[tuple[str, frozenset[Taint]]]:
    """Yield files that a program loads by default, such as `Makefile`, if their content is unknown.

    Each comes with the origins of its content, such as the network.
    """
    loaded = {name.lower() for name in loaded_names(run.name)}
    for path, stream in files.items() if loaded else ():
        if path.rpartition("/")[2].lower() in loaded and stream.text is None:
            yield path, stream.taints - {Taint.CONFIDENTIAL}


def has_option_like_target(run: ProgramRun) -> bool:
    """Return True if a program creates a file whose name looks like an option, such as `-rf`.

    A later `*` would expand to that name and pass it to another program as an option.
    """
    if run.name not in _table_names("makes_files"):
        return False
    double_dash = run.argv.index(Word("--")) if "--" in run.argv else len(run.argv)
    operands = (
        *(word for word in run.argv[1:double_dash] if not word.startswith("-")),
        *run.argv[double_dash + 1 :],
    )
    return any(_OPTION_FILE_NAME.match(word) for word in operands)


@cache
def _load_table() -> Mapping[str, Any]:
    text = package_files(__package__).joinpath("embedded.toml").read_text("utf-8")
    return MappingProxyType(tomllib.loads(text))


@cache
def _loads_by_program() -> Mapping[str, list[str]]:
    rows = _load_table()["loads"].items()
    return {program: names.split() for programs, names in rows for program in programs.split()}


def _table_names(key: str) -> frozenset[str]:
    return split_names(_load_table()[key])


def _name_without_version(run: ProgramRun) -> str:
    """Return a program's name without a version number: `python` for `python3.12`."""
    return run.name.rstrip("0123456789.") or run.name


def _input_text(run: ProgramRun) -> Word:
    """Return the known text of a program's standard input; empty if the text is unknown."""
    return run.stdin.text if run.stdin is not None and run.stdin.text is not None else Word("")


def _is_text_only(run: ProgramRun) -> bool:
    """Return True if a program runs none of its arguments as code, except code that is analyzed elsewhere."""
    name = _name_without_version(run)
    if name not in _table_names("interpreters"):
        return name in _table_names("text_programs") or run.name in _table_names("text_programs")
    return not any(has_indirect_call(text) for text in (*run.argv[1:], _input_text(run)))


def is_passive_program(run: ProgramRun) -> bool:
    """Return True if a program is known to run and load no file of the project."""
    if run.name == "git":
        has_code_option = any(word.startswith(_GIT_CODE_OPTIONS) for word in run.argv[1:])
        return not has_code_option and not any(name.startswith("GIT_") for name in run.env_assignments)
    return run.name in _table_names("runs_no_file") and "PATH" not in run.env_assignments


def _can_be_code(path: str, text: str, run: ProgramRun) -> bool:
    if path.startswith("/dev/") or _CONTAINER_FILE.match(path):
        return False
    language = detect_language(path, text)
    holds_command = _COMMAND_START.search(text[:MAX_TEXT_LENGTH]) is not None
    if not language and path.lower().endswith(tuple(_table_names("documents"))):
        return holds_command and any(path.rpartition("/")[2] in word for word in run.argv[1:])
    return holds_command or language not in ("", "make")
