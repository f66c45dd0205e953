"""Find the changed files that a program loads without naming them as code: build files, modules, hooks.

The table `loads` of `embedded.toml` names for each program the files that it interprets. Only files that
earlier commands or tools changed are of interest; files that were there before are the user's own.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from shellverdict.shell.embedded import detect_language, is_passive_program, language_of_name, loaded_names
from shellverdict.shell.inner import find_inner_commands
from shellverdict.shell.runs import ProgramRun, TextStream
from shellverdict.shell.state import ShellState
from shellverdict.shell.words import GAP, Word

__all__ = ["LoadedFile", "find_loaded_files", "find_possible_files"]

MAX_DIRECTORIES = 4
MAX_FILES = 200  # considered for one program
_SHELL_ENDINGS = (".sh", ".bash", ".zsh", ".ksh")
_COMPOSING = frozenset({"docker", "podman", "nerdctl"})
_PYTHON = re.compile(r"(?:python|pypy|ipython)[\d.]*")
_LOADED_AT_START = frozenset({"sitecustomize", "usercustomize"}) | sys.stdlib_module_names
_FORMATS = {
    "package.json": "npm",
    "compose.yml": "compose",
    "compose.yaml": "compose",
    "docker-compose.yml": "compose",
    "docker-compose.yaml": "compose",
}
_LIFECYCLE_SCRIPTS = (
    "preinstall",
    "install",
    "postinstall",
    "prepublish",
    "preprepare",
    "prepare",
    "postprepare",
)
_INSTALLING = frozenset({"install", "i", "ci", "add", "rebuild", "link", "update", "up"})
_SHORT_SCRIPTS = {"t": "test", "tst": "test"}
_RULE_LINE = re.compile(r"([^\s#=:][^#=:]*)::?(?!=)([^=;#]*)")
_VOLUME = re.compile(r"^\s*-\s*[\"']?([~/.$][^:\s\"']*:[^\s\"']+)", re.MULTILINE)
_MOUNT_SOURCE = re.compile(r"^\s*source:\s*[\"']?([~/.$][^\s\"']*)", re.MULTILINE)
_HOST_ACCESS = re.compile(r"^\s*(privileged|pid|ipc|userns_mode):\s*[\"']?(true|host)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """Changed file that a program loads, with the code in it."""

    path: str
    stream: TextStream
    language: str
    """Language of the code; empty if unknown, then the text is searched for commands."""
    is_certain: bool
    """True if the program interprets the file; False if it is one of many that it may import."""


def find_loaded_files(run: ProgramRun, state: ShellState) -> Iterator[LoadedFile]:
    """Yield the files changed before this command that a program would interpret, import or build with."""
    if run.is_remote or not run.argv:
        return
    patterns = [name for program in _program_names(run) for name in loaded_names(program)]
    languages = {name.removeprefix("@") for name in patterns if name.startswith("@")}
    if not patterns and is_passive_program(run):
        return
    named = (each.file for each in find_inner_commands(run))
    seen = {state.resolve_path(file) for file in named if file is not None}  # analyzed as such
    for path, is_named in _candidate_paths(run, state, patterns, languages):
        if path in seen or path in state.written_files:
            continue
        seen.add(path)
        stream = state.find_file(path)
        if stream is None or len(seen) > MAX_FILES:
            continue
        language = _detect_format(path, stream.text or "")
        is_certain = is_named or _shadows_module(path, language, languages)
        if not is_certain and (stream.text is None or not language):
            continue
        if language in _REWRITERS and stream.text is not None:
            stream = TextStream(Word(_REWRITERS[language](stream.text, run)), stream.taints)
            language = "make" if language == "make" else "sh"
        elif is_certain and not language and stream.text is not None and stream.text.startswith("#!"):
            language = "sh"
        yield LoadedFile(path, stream, language, is_certain)


def find_possible_files(path: Word, language: str, state: ShellState) -> Iterator[TextStream]:
    """Yield the changed files that a file name with wildcards or unknown parts may stand for.

    If all of the name is unknown, only files count that are code of this language.
    """
    is_named = bool(Word(posixpath.basename(path)).known_text)
    for found in state.list_matching(path)[:MAX_FILES]:
        stream = state.find_file(found)
        if stream is None:
            continue
        text = stream.text or ""
        is_script = language == "sh" and (found.endswith(_SHELL_ENDINGS) or text.startswith("#!"))
        if is_named or is_script or detect_language(found, text) == language:
            yield stream


def _program_names(run: ProgramRun) -> list[str]:
    """Return the names under which the table may have a program: itself, and the module of `python -m`."""
    names = [str(run.name), run.name.rstrip("0123456789.")]
    if _PYTHON.fullmatch(run.name) and "-m" in run.argv[:-1]:
        names.append(run.argv[run.argv.index(Word("-m")) + 1].partition(".")[0])
    if run.name in _COMPOSING and "compose" in run.argv[1:3]:
        names.append("docker-compose")
    return list(dict.fromkeys(names))


def _candidate_paths(
    run: ProgramRun, state: ShellState, patterns: list[str], languages: set[str]
) -> Iterator[tuple[str, bool]]:
    """Yield the paths of files that a program may load; True for those that it interprets for certain."""
    words = [Word(word.partition("=")[2] if word.startswith("-") else word) for word in run.argv[1:]]
    operands = [word for word in words if word and GAP not in word and len(word) < 1_000]
    for word in operands[:20]:
        path = state.resolve_path(word)
        language = _detect_format(path, "")
        if language:
            yield path, language in languages
    here = state.resolve_path(Word("."))
    directories = dict.fromkeys([here, *(state.resolve_path(word) for word in operands[:MAX_DIRECTORIES])])
    for directory in directories:
        for name in patterns:
            if not name.startswith("@"):
                yield posixpath.normpath(posixpath.join(directory, name)), True
    if "-m" in run.argv[:-1] and "python" in languages:
        module = run.argv[run.argv.index(Word("-m")) + 1].replace(".", "/")
        for ending in (".py", "/__init__.py", "/__main__.py"):
            yield posixpath.normpath(posixpath.join(here, module + ending)), True
    if languages:
        parents = [posixpath.dirname(state.resolve_path(word)) or "." for word in operands[:1]]
        for directory in dict.fromkeys([here, *parents, *_search_path(run, state)]):
            for path in state.list_changed_below(Word(directory)):
                if language_of_name(path) in languages:
                    yield path, False


def _detect_format(path: str, text: str) -> str:
    """Return the language of a file, or its format if the commands in it are selected by `_REWRITERS`."""
    return _FORMATS.get(posixpath.basename(path).lower()) or detect_language(path, text)


def _search_path(run: ProgramRun, state: ShellState) -> list[str]:
    value = run.env_assignments.get("PYTHONPATH", Word(""))
    return [state.resolve_path(Word(each)) for each in value.split(":")[:MAX_DIRECTORIES] if each]


def _shadows_module(path: str, language: str, languages: set[str]) -> bool:
    """Return True if a Python file has the name of a standard module, which others import."""
    stem = posixpath.basename(path).removesuffix(".py")
    return language == "python" and "python" in languages and stem in _LOADED_AT_START


def _select_package_scripts(text: str, run: ProgramRun) -> str:
    """Return the scripts of a package.json that a command of npm, yarn, pnpm or bun runs."""
    try:
        scripts = json.loads(text)["scripts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(scripts, dict):
        return ""
    operands = [str(word) for word in run.argv[1:] if not word.startswith("-")]
    called = [_SHORT_SCRIPTS.get(word, word) for word in operands]
    names = [f"{prefix}{name}" for name in called for prefix in ("pre", "", "post")]
    if _INSTALLING.intersection(operands) or not operands:
        names += _LIFECYCLE_SCRIPTS
    return "\n".join(str(scripts[name]) for name in dict.fromkeys(names) if name in scripts)


def _select_make_rules(text: str, run: ProgramRun) -> str:
    """Return a makefile without the rules of targets that a command does not build."""
    blocks: list[tuple[list[str], list[str], list[str]]] = []  # targets, prerequisites, lines
    common: list[str] = []
    for line in text.replace("\\\n", " ").split("\n"):
        if line.startswith("\t") and blocks:
            blocks[-1][2].append(line)
        elif not line.startswith("\t") and (found := _RULE_LINE.match(line)):
            blocks.append((found[1].split(), found[2].split(), [line]))
        else:
            common.append(line)
    targets = {target for names, _, _ in blocks for target in names}
    wanted = [str(word) for word in run.argv[1:] if word in targets]
    if not wanted:
        wanted = list(next((names for names, _, _ in blocks if not names[0].startswith(".")), ()))
    if any(set("%$") & set("".join(targets)) or line.lstrip("-").startswith("include") for line in common):
        return text
    needed: set[str] = set()
    while wanted:
        target = wanted.pop()
        if target not in needed:
            needed.add(target)
            wanted += [name for names, before, _ in blocks if target in names for name in before]
    chosen = [line for names, _, lines in blocks if needed.intersection(names) for line in lines]
    return "\n".join([*common, *chosen])


def _compose_as_command(text: str, _run: ProgramRun) -> str:
    """Return a `docker run` command with the access to this machine that a compose file grants."""
    volumes = [*_VOLUME.findall(text), *(f"{source}:{source}" for source in _MOUNT_SOURCE.findall(text))]
    access = [
        "--privileged" if name == "privileged" else f"--{name.removesuffix('_mode')}=host"
        for name, _ in _HOST_ACCESS.findall(text)
    ]
    words = ["docker", "run", *access, *(word for volume in volumes for word in ("-v", volume)), "image"]
    return " ".join(f"'{word}'" if set(word) & set(" ;&|<>()") else word for word in words)


_REWRITERS = {"npm": _select_package_scripts, "make": _select_make_rules, "compose": _compose_as_command}
