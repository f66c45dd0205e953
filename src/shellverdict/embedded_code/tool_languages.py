"""Analyze input languages of tools: make, cmake, cron, gdb, sftp, TeX, gnuplot, mongosh and others."""

from __future__ import annotations

import re

from shellverdict.embedded_code.analysis import SHELLS, AnalysisBuilder, CodeAnalysis
from shellverdict.embedded_code.call_scanner import CallScanner
from shellverdict.shell.words import GAP
from shellverdict.verdict import EffectKind

__all__ = [
    "analyze_cmake",
    "analyze_crontab",
    "analyze_dc",
    "analyze_debugger",
    "analyze_file_transfer",
    "analyze_gnuplot",
    "analyze_make",
    "analyze_make_value",
    "analyze_mongo",
]

_ASSIGNMENT = re.compile(r"\s*(?:export\s+|override\s+)?([\w.-]+)\s*(\?=|:{0,3}=|\+=|!=)\s*(.*)")
_RULE = re.compile(r"[^\s#=:][^#=:]*::?[^=;]*(?:;(.*))?$")
_SHELL_CALL = re.compile(r"\$[({]shell\s+([^(){}]*(?:\([^()]*\)[^(){}]*)*)[)}]")
_VARIABLE = re.compile(r"\$[({]([\w.-]+)[)}]|\$(\w)|\$([@<^?*+%|])")


def analyze_make(code: str) -> CodeAnalysis:
    """Analyze a makefile: the recipes of all targets, and the commands that run while make parses it."""
    analysis = AnalysisBuilder()
    values: dict[str, str] = {}
    for line in code.replace("\\\n", " ").split("\n"):
        for call in _SHELL_CALL.finditer(line):
            analysis.add_script(_expand_variables(call[1], values))
        if line.startswith("\t"):
            _add_recipe(line, values, analysis)
        elif match := _ASSIGNMENT.fullmatch(line):
            name, operator, value = match.groups()
            values[name] = _expand_variables(value, values)
            if operator == "!=":
                analysis.add_script(values[name])
        elif (rule := _RULE.match(line)) and rule[1]:
            _add_recipe(rule[1], values, analysis)
    return analysis.build()


def _add_recipe(line: str, values: dict[str, str], analysis: AnalysisBuilder) -> None:
    analysis.add_script(_expand_variables(line.strip().lstrip("@-+ "), values))


def _expand_variables(text: str, values: dict[str, str]) -> str:
    """Replace known make variables by their values, unknown ones by a placeholder, and `$$` by `$`."""
    parts = (_VARIABLE.sub(lambda m: values.get(m[1] or m[2] or "", GAP), part) for part in text.split("$$"))
    return "$".join(parts)[:16_384]


def analyze_make_value(code: str) -> CodeAnalysis:
    """Analyze a variable set on make's command line that may run commands: `$(shell …)` or `SHELL=…`."""
    analysis = AnalysisBuilder()
    for match in _SHELL_CALL.finditer(code):
        analysis.add_script(match[1])
    if analysis.scripts:
        return analysis.build()
    if " " in code.strip():
        analysis.add_script(code)
    elif code.strip().rpartition("/")[2] not in SHELLS:
        analysis.add_unreadable(code)  # the recipes are run by a program that is not a shell
    return analysis.build()


_CMAKE_CALL = re.compile(r"\b(execute_process|file|exec_program)\s*\(([^()]*)\)", re.IGNORECASE)
_CMAKE_VARIABLE = re.compile(r"\$\{[^{}]*\}")
_CMAKE_COMMAND = re.compile(
    r"\bCOMMAND\s+(.*?)(?=\b(?:COMMAND|WORKING_DIRECTORY|TIMEOUT|RESULT_VARIABLE|RESULTS_VARIABLE|OUTPUT_VARIABLE"
    r"|ERROR_VARIABLE|INPUT_FILE|OUTPUT_FILE|ERROR_FILE|OUTPUT_QUIET|ERROR_QUIET|COMMAND_ECHO|ENCODING)\b|\Z)",
    re.DOTALL,
)


def analyze_cmake(code: str) -> CodeAnalysis:
    """Analyze CMake code: programs that it starts, and files that it removes, during configuration."""
    analysis = AnalysisBuilder()
    for call in _CMAKE_CALL.finditer(code):
        words = _CMAKE_VARIABLE.sub(GAP, " ".join(call[2].split()))
        if call[1].lower() == "execute_process":
            for match in _CMAKE_COMMAND.finditer(words):
                analysis.add_script(match[1])
        elif call[1].lower() == "exec_program":
            analysis.add_script(words)
        elif words.upper().startswith("REMOVE"):
            how = "-rf" if words.upper().startswith("REMOVE_RECURSE") else "-f"
            analysis.add_script(f"rm {how} {words.partition(' ')[2]}")
    return analysis.build()


_CRON_LINE = re.compile(r"\s*(?:@\w+|(?:[\d*/,\-A-Za-z]+\s+){5})\s*(.*)")


def analyze_crontab(code: str) -> CodeAnalysis:
    """Analyze the commands in a crontab, each of which ends at an unescaped percent sign."""
    analysis = AnalysisBuilder()
    for line in code.split("\n"):
        match = _CRON_LINE.match(line)
        if match and not line.lstrip().startswith("#"):
            analysis.add_script(re.split(r"(?<!\\)%", match[1])[0].replace("\\%", "%"))
    return analysis.build()


_DEBUGGER_SHELL_WORDS = ("shell", "she", "shel", "!", "platform shell", "pl sh")


def analyze_debugger(code: str) -> tuple[CodeAnalysis, list[tuple[str, str]]]:
    """Analyze gdb and lldb commands; return the Python and C code that they contain, as (language, code)."""
    analysis = AnalysisBuilder()
    others: list[tuple[str, str]] = []
    for line in code.split("\n"):
        text = line.strip()
        if text.startswith("!"):
            analysis.add_script(text[1:])
        elif word := next((w for w in _DEBUGGER_SHELL_WORDS if text.startswith(w + " ")), None):
            analysis.add_script(text[len(word) :].strip())
        elif match := re.match(r"(?:python|py|pi|python-interactive|script)\s+(?:--\s+)?(.*)", text):
            others.append(("python", match[1]))
        elif match := re.match(r"set\s+logging\s+file\s+(\S+)", text):
            analysis.add_overwrite(match[1])
        elif text.startswith(("pipe ", "|")) and "|" in text[1:]:
            analysis.add_script(text.rpartition("|")[2])
        elif re.match(r"(?:call|print|p|expr|expression|e|inspect|output|set)\b", text):
            others.append(("c", text.partition(" ")[2]))
    return analysis.build(), others


def analyze_file_transfer(code: str) -> CodeAnalysis:
    """Analyze lftp and sftp commands: `!command`, `rm -r`, `mirror --delete`."""
    analysis = AnalysisBuilder()
    for part in re.split(r"[;\n]", code):
        text = part.strip().lstrip("-@")
        if text.startswith("!"):
            analysis.add_script(text[1:])
        elif re.match(r"(?:rm\s+-r|glob\s+rm|mrm|mirror\s.*--delete)", text):
            analysis.add_effect(EffectKind.DELETE, text.rpartition(" ")[2], "recursive", "remote")
    return analysis.build()


_DC_COMMAND = re.compile(r"!(?![<>=])([^\n]*)")
_TEX_COMMAND = re.compile(r"\\write\s*18\s*\{([^{}]*)\}|\\ShellEscape\{([^{}]*)\}|\|\s*\"([^\"]*)\"")
_PUPPET_COMMAND = re.compile(r"exec\s*\{\s*['\"]([^'\"]*)['\"]|command\s*=>\s*['\"]([^'\"]*)['\"]")


def analyze_dc(code: str) -> CodeAnalysis:
    """Analyze code of the calculator dc, which runs the text after `!` in a shell."""
    return _analyze_matches(_DC_COMMAND, code)


def analyze_tex(code: str) -> CodeAnalysis:
    r"""Analyze TeX code that runs commands: `\write18{command}` and `\input|"command"`."""
    return _analyze_matches(_TEX_COMMAND, code)


def analyze_puppet(code: str) -> CodeAnalysis:
    """Analyze the commands of `exec` resources in Puppet code."""
    return _analyze_matches(_PUPPET_COMMAND, code)


def _analyze_matches(pattern: re.Pattern[str], code: str) -> CodeAnalysis:
    """Analyze the shell code that `pattern` finds: the first non-empty group of each match."""
    analysis = AnalysisBuilder()
    for match in pattern.finditer(code):
        analysis.add_script(next((group for group in match.groups() if group), ""))
    return analysis.build()


def analyze_gnuplot(code: str) -> CodeAnalysis:
    """Analyze gnuplot code: `!command` lines, `system(…)`, backticks, and `"< command"` as a data source."""
    scanner = CallScanner(code, "gnuplot")
    scanner.scan()
    for line in re.split(r"[;\n]", code):
        if line.lstrip().startswith("!"):
            scanner.analysis.add_script(line.lstrip()[1:])
    for text in scanner.strings:
        if text.startswith(("<", "|")):
            scanner.analysis.add_script(text[1:])
    return scanner.analysis.build()


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
_MONGO_WHOLE_COLLECTION = frozenset({"deleteMany", "remove", "updateMany", "deleteOne", "update"})
_MONGO_COMMANDS = frozenset(
    {"dropDatabase", "drop", "shutdown", "dropUser", "dropIndexes", "dropAllUsersFromDatabase"}
)


def analyze_mongo(code: str) -> CodeAnalysis:
    """Analyze code of MongoDB's shell: collections and databases dropped or emptied, programs started."""
    scanner = CallScanner(code, "node")
    scanner.scan()
    for at, token in enumerate(scanner.tokens):
        if token.kind != "name" or scanner.mark_at(at + 1) != "(":
            continue
        arguments = scanner.arguments_at(at)
        whole = not arguments or "".join(part.text for part in arguments[0]) == "{}"
        if token.text in _MONGO_DROPS or (
            token.text in _MONGO_WHOLE_COLLECTION and whole and scanner.mark_at(at - 1) == "."
        ):
            trait = "drop" if token.text in _MONGO_DROPS else "delete-all"
            scanner.analysis.add_effect(
                EffectKind.DATABASE,
                scanner.qualified_name(at),
                trait,
                detail=f"{scanner.qualified_name(at)}()",
            )
        elif token.text in ("runCommand", "adminCommand") and arguments:
            command = next((part.text for part in arguments[0] if part.kind in ("name", "string")), "")
            if command in _MONGO_COMMANDS:
                scanner.analysis.add_effect(EffectKind.DATABASE, command, "drop", detail=command)
        elif token.text in ("run", "runProgram", "runNonMongoProgram"):
            scanner.analysis.add_command(*(text for text in scanner.argument_texts(at) if text))
    return scanner.analysis.build()
