"""Small languages of tools: make, cron, debuggers, file transfer, MongoDB's shell."""

from __future__ import annotations

import re

from shellverdict.foreign.nouns import SHELLS, Foreign, Found
from shellverdict.foreign.scripts import Calls
from shellverdict.shell.words import GAP
from shellverdict.verdict import Kind

__all__ = [
    "read_cmake",
    "read_crontab",
    "read_dc",
    "read_debugger",
    "read_gnuplot",
    "read_make",
    "read_make_value",
    "read_mongo",
    "read_transfer",
]

_ASSIGNMENT = re.compile(r"\s*(?:export\s+|override\s+)?([\w.-]+)\s*(\?=|:{0,3}=|\+=|!=)\s*(.*)")
_RULE = re.compile(r"[^\s#=:][^#=:]*::?[^=;]*(?:;(.*))?$")
_SHELL_CALL = re.compile(r"\$[({]shell\s+([^(){}]*(?:\([^()]*\)[^(){}]*)*)[)}]")
_VARIABLE = re.compile(r"\$[({]([\w.-]+)[)}]|\$(\w)|\$([@<^?*+%|])")


def read_make(code: str) -> Foreign:
    """The recipes of a makefile, whichever target would be built, and what runs while it is read."""
    found = Found()
    values: dict[str, str] = {}
    for line in code.replace("\\\n", " ").split("\n"):
        for call in _SHELL_CALL.finditer(line):
            found.script(_filled(call[1], values))
        if line.startswith("\t"):
            _recipe(line, values, found)
        elif match := _ASSIGNMENT.fullmatch(line):
            name, operator, value = match.groups()
            values[name] = _filled(value, values)
            if operator == "!=":
                found.script(values[name])
        elif (rule := _RULE.match(line)) and rule[1]:
            _recipe(rule[1], values, found)
    return found.foreign


def _recipe(line: str, values: dict[str, str], found: Found) -> None:
    found.script(_filled(line.strip().lstrip("@-+ "), values))


def _filled(text: str, values: dict[str, str]) -> str:
    """With variables put in, as far as they are known, and `$$` as the shell's own dollar."""
    parts = (_VARIABLE.sub(lambda m: values.get(m[1] or m[2] or "", GAP), part) for part in text.split("$$"))
    return "$".join(parts)[:16_384]


def read_make_value(code: str) -> Foreign:
    """A variable on make's command line: `$(shell …)` in it, or a shell to run recipes with."""
    found = Found()
    for match in _SHELL_CALL.finditer(code):
        found.script(match[1])
    if found.scripts:
        return found.foreign
    if " " in code.strip():
        found.script(code)
    elif code.strip().rpartition("/")[2] not in SHELLS:
        found.unreadable(code)  # a program that is no shell is given the recipes
    return found.foreign


_CMAKE_CALL = re.compile(r"\b(execute_process|file|exec_program)\s*\(([^()]*)\)", re.IGNORECASE)
_CMAKE_VARIABLE = re.compile(r"\$\{[^{}]*\}")
_CMAKE_COMMAND = re.compile(
    r"\bCOMMAND\s+(.*?)(?=\b(?:COMMAND|WORKING_DIRECTORY|TIMEOUT|RESULT_VARIABLE|RESULTS_VARIABLE|OUTPUT_VARIABLE"
    r"|ERROR_VARIABLE|INPUT_FILE|OUTPUT_FILE|ERROR_FILE|OUTPUT_QUIET|ERROR_QUIET|COMMAND_ECHO|ENCODING)\b|\Z)",
    re.DOTALL,
)


def read_cmake(code: str) -> Foreign:
    """CMake: programs that run while a file is read, and files that are deleted."""
    found = Found()
    for call in _CMAKE_CALL.finditer(code):
        words = _CMAKE_VARIABLE.sub(GAP, " ".join(call[2].split()))
        if call[1].lower() == "execute_process":
            for given in _CMAKE_COMMAND.finditer(words):
                found.script(given[1])
        elif call[1].lower() == "exec_program":
            found.script(words)
        elif words.upper().startswith("REMOVE"):
            how = "-rf" if words.upper().startswith("REMOVE_RECURSE") else "-f"
            found.script(f"rm {how} {words.partition(' ')[2]}")
    return found.foreign


_CRON = re.compile(r"\s*(?:@\w+|(?:[\d*/,\-A-Za-z]+\s+){5})\s*(.*)")


def read_crontab(code: str) -> Foreign:
    """The commands of a table; a percent sign ends one."""
    found = Found()
    for line in code.split("\n"):
        match = _CRON.match(line)
        if match and not line.lstrip().startswith("#"):
            found.script(re.split(r"(?<!\\)%", match[1])[0].replace("\\%", "%"))
    return found.foreign


_SHELL_WORDS = ("shell", "she", "shel", "!", "platform shell", "pl sh")


def read_debugger(code: str) -> tuple[Foreign, list[tuple[str, str]]]:
    """gdb and lldb: their shells, and their Python."""
    found = Found()
    others: list[tuple[str, str]] = []
    for line in code.split("\n"):
        text = line.strip()
        if text.startswith("!"):
            found.script(text[1:])
        elif word := next((w for w in _SHELL_WORDS if text.startswith(w + " ")), None):
            found.script(text[len(word) :].strip())
        elif match := re.match(r"(?:python|py|pi|python-interactive|script)\s+(?:--\s+)?(.*)", text):
            others.append(("python", match[1]))
        elif match := re.match(r"set\s+logging\s+file\s+(\S+)", text):
            found.overwrite(match[1])
        elif text.startswith(("pipe ", "|")) and "|" in text[1:]:
            found.script(text.rpartition("|")[2])
        elif re.match(r"(?:call|print|p|expr|expression|e|inspect|output|set)\b", text):
            others.append(("c", text.partition(" ")[2]))
    return found.foreign, others


def read_transfer(code: str) -> Foreign:
    """lftp and sftp: `!command`, `rm -r`, `mirror --delete`."""
    found = Found()
    for part in re.split(r"[;\n]", code):
        text = part.strip().lstrip("-@")
        if text.startswith("!"):
            found.script(text[1:])
        elif re.match(r"(?:rm\s+-r|glob\s+rm|mrm|mirror\s.*--delete)", text):
            found.effect(Kind.DELETE, text.rpartition(" ")[2], "recursive", "remote")
    return found.foreign


_DC = re.compile(r"!(?![<>=])([^\n]*)")
_TEX = re.compile(r"\\write\s*18\s*\{([^{}]*)\}|\\ShellEscape\{([^{}]*)\}|\|\s*\"([^\"]*)\"")
_PUPPET = re.compile(r"exec\s*\{\s*['\"]([^'\"]*)['\"]|command\s*=>\s*['\"]([^'\"]*)['\"]")


def read_dc(code: str) -> Foreign:
    """The calculator dc runs a line behind `!`."""
    return _every(_DC, code)


def read_tex(code: str) -> Foreign:
    r"""TeX: `\write18{command}` and `\input|"command"`."""
    return _every(_TEX, code)


def read_puppet(code: str) -> Foreign:
    return _every(_PUPPET, code)


def _every(pattern: re.Pattern[str], code: str) -> Foreign:
    found = Found()
    for match in pattern.finditer(code):
        found.script(next((group for group in match.groups() if group), ""))
    return found.foreign


def read_gnuplot(code: str) -> Foreign:
    """gnuplot: `!command` on a line of its own, `system(…)`, backticks, `"< command"` as data."""
    calls = Calls(code, "gnuplot")
    calls.read()
    for line in re.split(r"[;\n]", code):
        if line.lstrip().startswith("!"):
            calls.found.script(line.lstrip()[1:])
    for text in calls.strings:
        if text.startswith(("<", "|")):
            calls.found.script(text[1:])
    return calls.found.foreign


_MONGO_DROPS = frozenset(
    {
        *(
            "dropDatabase",
            "drop",
            "dropCollection",
            "dropUser",
            "dropAllUsers",
            "dropRole",
            "dropAllRoles",
            "shutdownServer",
        ),
        *(
            "dropAllUsersFromDatabase",
            "dropIndexes",
            "renameCollection",
            "fsyncLock",
            "grantRolesToUser",
            "dropAllRolesFromDatabase",
        ),
    }
)
_MONGO_WHOLE = frozenset({"deleteMany", "remove", "updateMany", "deleteOne", "update"})
_MONGO_COMMANDS = frozenset(
    {"dropDatabase", "drop", "shutdown", "dropUser", "dropIndexes", "dropAllUsersFromDatabase"}
)


def read_mongo(code: str) -> Foreign:
    """What a text of MongoDB's shell drops, empties or runs."""
    calls = Calls(code, "node")
    calls.read()
    for at, token in enumerate(calls.tokens):
        if token.kind != "name" or calls.mark(at + 1) != "(":
            continue
        arguments = calls.arguments(at)
        whole = not arguments or "".join(part.text for part in arguments[0]) == "{}"
        if token.text in _MONGO_DROPS or (token.text in _MONGO_WHOLE and whole and calls.mark(at - 1) == "."):
            trait = "drop" if token.text in _MONGO_DROPS else "delete-all"
            calls.found.effect(Kind.DATABASE, calls.qualified(at), trait, detail=f"{calls.qualified(at)}()")
        elif token.text in ("runCommand", "adminCommand") and arguments:
            command = next((part.text for part in arguments[0] if part.kind in ("name", "string")), "")
            if command in _MONGO_COMMANDS:
                calls.found.effect(Kind.DATABASE, command, "drop", detail=command)
        elif token.text in ("run", "runProgram", "runNonMongoProgram"):
            calls.found.command(*(text for text in calls.texts(at) if text))
    return calls.found.foreign
