"""Analyze code of shells that are not POSIX-like: fish, PowerShell, cmd, Tcl and Expect.

Their commands are translated to commands of a POSIX shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shellverdict.embedded_code.analysis import AnalysisBuilder, CodeAnalysis, find_remote_url, quote_word
from shellverdict.shell.words import GAP
from shellverdict.verdict import EffectKind

__all__ = ["analyze_cmd", "analyze_fish", "analyze_powershell", "analyze_tcl"]

_MAX_DEPTH = 6  # nested evaluation

_FISH_WORD = re.compile(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?|\\.|\(|\)|[^'\"\\()]+", re.DOTALL)
_FISH_SET = re.compile(r"(^|[;\n&|]\s*|\bbegin\s+|\bthen\s+)set\s+(?:-{1,2}[\w-]+\s+)*(\w+)\s+([^;\n|&]*)")
_FISH_FOR = re.compile(r"(^|[;\n])(\s*)for\s+(\w+)\s+in\s+[^;\n]*")
_FISH_NOISE = re.compile(
    r"(^|[;\n])(\s*)(?:and|or|begin|end|not|builtin|command|else if|else|if|while|function \w+)\b"
)


def analyze_fish(code: str) -> CodeAnalysis:
    """Analyze fish code by translating it to sh: `(…)` is a substitution, `set a b` an assignment."""
    parts: list[str] = []
    for word in _FISH_WORD.findall(code):
        parts.append("$(" if word == "(" and not (parts and parts[-1].endswith("$")) else word)
    text = "".join(parts)
    text = _FISH_SET.sub(
        lambda m: f"{m[1]}{m[2]}={quote_word(m[3].strip()) if ' ' in m[3].strip() else m[3].strip()}", text
    )
    text = _FISH_FOR.sub(rf"\1\2\3={GAP}", text)
    text = _FISH_NOISE.sub(r"\1\2", text)
    analysis = AnalysisBuilder()
    analysis.add_script(text)
    return analysis.build()


_PS_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|`\n|<\#(?:.*?\#>|.*\Z)|\#[^\n]*)|(?P<string>'(?:[^']|'')*(?:'|\Z))"
    r"|(?P<text>\"(?:[^\"`]|`.|\"\")*(?:\"|\Z))"
    r"|(?P<end>&&|\|\||[;\n|&{}()])|(?P<word>(?:`.|[^\s'\"`;|&{}()])+)|(?P<other>.)",
    re.DOTALL,
)
_PS_INTERPOLATION = re.compile(r"\$\([^()]*\)?|\$\{?[\w:]+\}?")
_PS_ESCAPE = re.compile(r"`(.)", re.DOTALL)
_PS_DELETES = frozenset({"remove-item", "ri", "rm", "rmdir", "rd", "del", "erase"})
_PS_FETCHES = (
    *(
        "invoke-webrequest",
        "invoke-restmethod",
        "iwr",
        "irm",
        "downloadstring",
        "downloadfile",
        "downloaddata",
        "webclient",
    ),
    *("start-bitstransfer", "openread", "httpclient", "webrequest", "curl", "wget"),
)
_PS_SENDS = re.compile(r"-body\b|-method\s+(?:post|put)|uploadstring|uploaddata|postasync|\?[^\s]*\$\{?env:")
_PS_FORMATS = frozenset(
    {"format-volume", "clear-disk", "initialize-disk", "remove-partition", "reset-physicaldisk", "format"}
)
_PS_SKIPPED = re.compile(
    r"[a-z]+-[a-z]+\w*|[$\[@.\d-].*|.*://.*"
    r"|if|else|elseif|foreach|for|while|function|return|try|catch|param|in|new"
)
_PS_FILE_CALLS = re.compile(
    r"::(delete|writealltext|writeallbytes|writealllines|move|replace)\(\s*(?:'([^']*)'|\"([^\"]*)\")([^)]*)"
)


def analyze_powershell(code: str, depth: int = 0) -> CodeAnalysis:
    """Analyze PowerShell code: cmdlets, methods that change files, uploads of variables, reverse shells."""
    analysis = AnalysisBuilder()
    lowered = code.lower()
    for words in _split_ps_commands(code):
        _add_ps_command(words, lowered, analysis, depth)
    _add_ps_method_calls(code, lowered, analysis)
    if "env:" in lowered and _PS_SENDS.search(lowered):
        whole = re.search(r"(?:childitem|gci|dir|ls|item)\s+(?:-path\s+)?env:", lowered)
        names = [""] if whole else re.findall(r"\$\{?env:(\w+)", code, re.IGNORECASE)[:32]
        analysis.add_environment_upload(
            names, find_remote_url(re.findall(r"https?://[^\s'\"),;]+", code)[:8])
        )
    if "tcpclient" in lowered and re.search(
        r"\biex\b|invoke-expression|cmd|powershell|start-process|\bsh\b", lowered
    ):
        analysis.add_effect(EffectKind.REVERSE_SHELL, detail="connects a shell to the network")
    return analysis.build()


def _split_ps_commands(code: str) -> Iterator[list[str]]:
    """Yield each PowerShell command as a list of words; the content of brackets is a separate command."""
    words: list[str] = []
    glued, called, value = False, False, False
    for match in _PS_TOKEN.finditer(code):
        kind, text = match.lastgroup, match[0]
        if kind in ("end", "space"):
            glued = False
            if kind == "end":
                if words and not value:
                    yield words
                words, called, value = [], text == "&", False
            continue
        text = _unquote_ps_token(kind or "", text)
        if glued and words:
            words[-1] += text
        else:
            value |= not words and kind in ("string", "text") and not called
            words.append(text)
        glued = True
    if words and not value:
        yield words


def _unquote_ps_token(kind: str, text: str) -> str:
    if kind == "string":
        return text[1:].removesuffix("'").replace("''", "'")
    if kind == "text":
        text = _PS_INTERPOLATION.sub(GAP, text[1:].removesuffix('"').replace('""', '"'))
    return _PS_ESCAPE.sub(r"\1", text)


def _add_ps_command(words: list[str], lowered: str, analysis: AnalysisBuilder, depth: int) -> None:
    name, rest = words[0].lower(), words[1:]
    operands = [word for word in rest if word[:1] != "-"]
    if name in ("iex", "invoke-expression"):
        _add_ps_evaluation(operands, lowered, analysis, depth)
    elif name in _PS_DELETES:
        tree = any(
            word.lower().startswith(("-r", "/s")) or word.lower() in ("-fr", "-force:-recurse")
            for word in rest
        )
        for path in operands or [GAP]:
            analysis.add_delete(_ps_pattern(path), tree=tree)
        if not operands:  # the files to delete come from the pipeline
            analysis.add_command("xargs", "rm", "-rf" if tree or "-recurse" in lowered else "-f", "--")
    elif name in ("clear-content", "clc", "set-content", "out-file", "new-item", "ni") and operands:
        analysis.add_append(_ps_pattern(operands[0])) if "-append" in map(
            str.lower, rest
        ) else analysis.add_overwrite(_ps_pattern(operands[0]))
    elif name in ("add-content", "ac") and operands:
        analysis.add_append(_ps_pattern(operands[0]))
    elif name in ("move-item", "mi", "copy-item", "ci", "cpi") and len(operands) > 1:
        analysis.add_command("mv" if name[0] == "m" else "cp", "--", *map(_ps_pattern, operands[:2]))
    elif name in _PS_FORMATS:
        analysis.add_effect(EffectKind.FORMAT, " ".join(operands), detail=" ".join(words)[:80])
    elif name in ("stop-computer", "restart-computer"):
        analysis.add_command("reboot" if name[0] == "r" else "poweroff")
    elif name in ("stop-service", "restart-service", "remove-service", "disable-service"):
        analysis.add_command("systemctl", "stop", *operands)
    elif name in ("stop-process", "spps"):
        analysis.add_command("killall" if "-name" in map(str.lower, rest) else "kill", *(operands or [GAP]))
    elif name in ("start-process", "saps", "start", "invoke-item", "ii") and rest:
        analysis.add_command(
            *(part for word in rest if word[1:2].islower() or word[:1] != "-" for part in word.split(","))
        )
    elif name.lstrip("./\\") in _downloaded_ps_files(lowered):
        analysis.add_unread_code(words[0], frozenset({"network"}))
    elif name and not _PS_SKIPPED.fullmatch(name) and (len(words) == 1 or rest[0][:1] != "="):
        analysis.add_command(*words)


_PS_OUT = re.compile(r"-o(?:ut|utf|utfi|utfil|utfile)?\s+['\"]?([^\s'\";|]+)")


def _downloaded_ps_files(lowered: str) -> set[str]:
    """Return the names of files that PowerShell code downloads."""
    if not any(name in lowered for name in _PS_FETCHES):
        return set()
    return {name.lstrip("./\\") for name in _PS_OUT.findall(lowered)}


def _ps_pattern(path: str) -> str:
    return path.replace("*", "\ufdd1") if "*" in path else path


def _add_ps_evaluation(operands: Sequence[str], lowered: str, analysis: AnalysisBuilder, depth: int) -> None:
    traits = frozenset({"network"} if any(name in lowered for name in _PS_FETCHES) else ()) | frozenset(
        {"decoded"} if "frombase64string" in lowered or "decompress" in lowered else ()
    )
    if traits or not operands:
        analysis.add_unread_code("Invoke-Expression", traits)
    elif GAP in operands[0] or operands[0].startswith("$"):
        analysis.add_unreadable("Invoke-Expression")
    elif depth < _MAX_DEPTH:
        analysis.merge(analyze_powershell(" ".join(operands), depth + 1))
    else:
        analysis.add_unreadable("Invoke-Expression")


def _add_ps_method_calls(code: str, lowered: str, analysis: AnalysisBuilder) -> None:
    for match in _PS_FILE_CALLS.finditer(lowered):
        name, path = match[1], code[match.start(2) : match.end(2)] or code[match.start(3) : match.end(3)]
        if name == "delete":
            analysis.add_delete(path, tree="true" in match[4])
        elif path:
            analysis.add_overwrite(path)
    if "scriptblock]::create" in lowered or ".invoke(" in lowered:
        traits = frozenset({"network"} if any(name in lowered for name in _PS_FETCHES) else ())
        if traits:
            analysis.add_unread_code("ScriptBlock", traits)


_CMD_DELETES = frozenset({"del", "erase", "rd", "rmdir"})


def analyze_cmd(code: str) -> CodeAnalysis:
    """Analyze cmd.exe code, in which `^` escapes a character, and `&` and `|` separate commands."""
    analysis = AnalysisBuilder()
    for part in re.split(r"[&|\n]+", code.replace("^", "")):
        words = part.strip().strip('()"').split()
        if not words:
            continue
        name, rest = words[0].lower().lstrip("@"), words[1:]
        flags = {word.lower() for word in rest if word.startswith("/")}
        operands = [word.strip('"') for word in rest if not word.startswith("/")]
        if name in _CMD_DELETES:
            for path in operands:
                analysis.add_delete(path.replace("*", "\ufdd1"), tree="/s" in flags)
        elif name == "format":
            analysis.add_effect(EffectKind.FORMAT, " ".join(operands), detail=part.strip()[:80])
        else:
            analysis.add_script(part.strip())
    return analysis.build()


_TCL_START = re.compile(
    r"(?:^|(?<=[;\n\[{]))\s*(exec|spawn|system|open|file|send|exp_send|eval|socket|source|overlay|fork)\b"
)
_TCL_WORD = re.compile(
    r"\"((?:[^\"\\]|\\.)*)\"?|\{([^{}]*)\}|((?:[^\s\"{}\[\];\\]|\\.)+)|(\[)|([;\n\]}])|([ \t\\]+)|(.)",
    re.DOTALL,
)
_TCL_TEXT = re.compile(r"\s*(?:puts|set|append|lappend|return|string|list)\b[^\[\n;]*\{")
_TCL_OPERATOR = re.compile(r"[|<>&0-9@]+&?|>>?.*|2>.*|<.*")


def analyze_tcl(code: str, depth: int = 0) -> CodeAnalysis:
    """Analyze Tcl and Expect code: programs started, text sent to them, files written or deleted."""
    analysis = AnalysisBuilder()
    code = code.replace('\\"', '"')
    names = set()
    for match in _TCL_START.finditer(code):
        if _TCL_TEXT.match(
            code, max(code.rfind(";", 0, match.start()), code.rfind("\n", 0, match.start())) + 1
        ):
            continue
        names.add(match[1])
        words = _read_tcl_words(code, match.end())
        _add_tcl_command(match[1], words, analysis, depth)
    if "socket" in names and analysis.scripts:
        analysis.add_effect(EffectKind.REVERSE_SHELL, detail="connects a shell to the network")
    return analysis.build()


def _read_tcl_words(code: str, at: int) -> list[str]:
    words: list[str] = []
    for match in _TCL_WORD.finditer(code, at, min(len(code), at + 2048)):
        text, braced, bare, nested, end, _, _ = match.groups()
        if end or len(words) > 64:
            break
        if text is not None:
            words.append(_expand_tcl(text))
        elif braced is not None:
            words.append(braced)
        elif bare is not None:
            words.append(_expand_tcl(bare))
        elif nested:
            words.append(GAP)
            break
    return words


def _expand_tcl(text: str) -> str:
    text = re.sub(r"\$\{[^{}]*\}?|\$\w+|\[[^\[\]]*\]?", GAP, text)
    return re.sub(r"\\(.)", lambda m: {"r": "\n", "n": "\n", "t": "\t"}.get(m[1], m[1]), text)


def _add_tcl_command(name: str, words: list[str], analysis: AnalysisBuilder, depth: int) -> None:
    while words and words[0].startswith("-") and name in ("exec", "spawn", "send", "exp_send", "source"):
        words = words[1:]
    if name in ("exec", "spawn", "overlay"):
        analysis.add_script(
            " ".join(word if _TCL_OPERATOR.fullmatch(word) else quote_word(word) for word in words) or GAP
        )
    elif name == "system":
        analysis.add_script(" ".join(words))
    elif name in ("send", "exp_send") and words:
        analysis.add_script(words[-1])
    elif name == "eval":
        analysis.merge(analyze_tcl(" ".join(words), depth + 1)) if words and GAP not in words[
            0
        ] and depth < _MAX_DEPTH else analysis.add_unreadable("eval")
    elif name == "open" and words and words[0].startswith("|"):
        analysis.add_script(words[0][1:])
    elif name == "open" and len(words) > 1 and words[1][:1] in ("w", "a"):
        analysis.add_append(words[0]) if words[1].startswith("a") else analysis.add_overwrite(words[0])
    elif name == "file" and words[:1] == ["delete"]:
        for path in (word for word in words[1:] if not word.startswith("-")):
            analysis.add_delete(path, tree="-force" in words)
    elif name == "file" and words[:1] in (["rename"], ["copy"]) and len(words) > 2:
        analysis.add_command("mv" if words[0] == "rename" else "cp", "--", *words[-2:])
