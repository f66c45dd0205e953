"""Other spellings of words: quotes, escapes, variables, arrays, encodings; and prefixes of a command."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

__all__ = [
    "COMMAND_PREFIXES",
    "COMMAND_SPELLINGS",
    "EXPANSION_SAFE_SPELLINGS",
    "PlainCommand",
    "PrefixedCommand",
    "ansi_quote",
    "apply_rot13",
    "double_quote",
    "single_quote",
]


@dataclass(frozen=True, slots=True)
class PlainCommand:
    """Command of one program with arguments; words with an expansion keep their typed form."""

    words: tuple[str, ...]
    has_expansion: tuple[bool, ...]

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def script(self) -> str:
        return " ".join(_words_as_typed(self))


@dataclass(frozen=True, slots=True)
class PrefixedCommand:
    """Command with a prefix such as `nice` before its words."""

    plain: PlainCommand
    prefix: Sequence[str]

    @property
    def words_as_typed(self) -> list[str]:
        return _words_as_typed(self.plain)

    @property
    def all(self) -> list[str]:
        """All words without quotes, for spellings of commands that have no expansions."""
        return [*self.prefix, *self.plain.words]


def _words_as_typed(plain: PlainCommand) -> list[str]:
    return [
        word if has_expansion else shlex.quote(word)
        for word, has_expansion in zip(plain.words, plain.has_expansion, strict=True)
    ]


# Command prefixes


COMMAND_PREFIXES: tuple[tuple[str, ...], ...] = (
    ("env",),
    ("env", "X=1"),
    ("env", "-u", "X", "Y=2"),
    ("env", "--"),
    ("nice",),
    ("nice", "-n", "5"),
    ("nice", "-n5"),
    ("timeout", "5"),
    ("timeout", "-k", "1", "5"),
    ("timeout", "--signal=KILL", "5s"),
    ("nohup",),
    ("setsid", "-w"),
    ("stdbuf", "-oL"),
    ("stdbuf", "-o", "0"),
    ("command",),
    ("command", "--"),
    ("exec",),
    ("exec", "-a", "ls"),
    ("builtin", "command"),
    ("eval",),
    ("nice", "timeout", "5", "env", "X=1"),
)


# One word


def single_quote(text: str, random: Random) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def double_quote(text: str, random: Random) -> str:
    return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'


def _escape_characters(text: str, random: Random) -> str:
    return "".join("\\" + c if random.random() < 0.6 or not c.isalnum() else c for c in text) or "''"


def _mix_quotes(text: str, random: Random) -> str:
    variants: list[Callable[[str, Random], str]] = [
        single_quote,
        double_quote,
        ansi_quote,
        lambda c, r: shlex.quote(c),
        _escape_characters,
    ]
    return "".join(random.choice(variants)(c, random) for c in text) or '""'


def ansi_quote(text: str, random: Random) -> str:
    return "$'" + "".join(_encode_ansi_character(c, random) for c in text) + "'"


def _encode_ansi_character(c: str, random: Random) -> str:
    if not c.isascii():
        return f"\\U{ord(c):08x}"
    variants = [f"\\x{ord(c):02x}", f"\\{ord(c):03o}", f"\\u{ord(c):04x}"]
    if c.isalnum() or c in "/-. ":
        variants.append(c)
    return random.choice(variants)


def _localized_quote(text: str, random: Random) -> str:
    return "$" + double_quote(text, random)


def _insert_empty_expansions(text: str, random: Random) -> str:
    """Insert expansions that produce nothing between the letters."""
    nothing = [
        "''",
        '""',
        "${nope}",
        "$nope''",
        "${nope:-}",
        "$'' ".strip(),
        "${nope+x}",
        "$()",
        "``",
        "\\\n",
    ]
    return "".join(shlex.quote(c) + random.choice(nothing) for c in text) or "''"


def _use_default_value(text: str, random: Random) -> str:
    quoted = double_quote(text, random)
    return (
        random.choice(['"${nope:-%s}"', '"${nope-%s}"', "${nope:-%s}", "${nope=%s}"]) % quoted
        if text
        else '""'
    )


def _print_by_substitution(text: str, random: Random) -> str:
    single_quote = shlex.quote(text)
    octal = "".join(f"\\{byte:03o}" for byte in text.encode())
    hexadecimal = "".join(f"\\x{byte:02x}" for byte in text.encode())
    variants = [
        f'"$(printf %s {single_quote})"',
        f'"$(echo {single_quote})"' if not text.startswith("-") else f'"$(printf "%s" {single_quote})"',
        f"\"$(printf '{octal}')\"",
        f"\"$(printf '%b' '{hexadecimal}')\"",
        f"\"$(echo -e '{hexadecimal}')\"",
        f'"$(base64 -d <<< {base64.b64encode(text.encode()).decode()})"',
        f'"$(echo {base64.b64encode(text.encode()).decode()} | base64 --decode)"',
        f'"$(xxd -r -p <<< {text.encode().hex()})"',
        f'"$(rev <<< {shlex.quote(text[::-1])})"',
        f'"$(tr a-z n-za-m <<< {shlex.quote(apply_rot13(text))})"',
        f'"$(cat <<< {single_quote})"',
        f'"$(sed s/^x// <<< {shlex.quote("x" + text)})"',
        f'"$(cut -c2- <<< {shlex.quote("x" + text)})"',
    ]
    if "'" not in text and "\\" not in text and not text.startswith("-"):
        variants.append(f'"`echo {single_quote}`"')
    return random.choice(variants)


def apply_rot13(text: str) -> str:
    return "".join(chr((ord(c) - 97 + 13) % 26 + 97) if "a" <= c <= "z" else c for c in text)


WORD_SPELLINGS: dict[str, Callable[[str, Random], str]] = {
    "single quotes": single_quote,
    "double quotes": double_quote,
    "backslashes": _escape_characters,
    "mixed quotes": _mix_quotes,
    "ANSI-C string": ansi_quote,
    "localized string": _localized_quote,
    "nothing between letters": _insert_empty_expansions,
    "default value": _use_default_value,
    "substitution": _print_by_substitution,
}


# One word in a variable: the assignment that must precede it, and the word


def _assign_variable(name: str, text: str, random: Random) -> str:
    quoted = random.choice([single_quote, double_quote, _mix_quotes, ansi_quote])(text, random)
    variants = [
        f"{name}={quoted}",
        f"export {name}={quoted}",
        f"declare {name}={quoted}",
        f"declare -x {name}={quoted}",
        f"readonly {name}={quoted}",
        f"typeset {name}={quoted}",
        f"printf -v {name} %s {quoted}",
        f"IFS= read -r {name} <<< {quoted}",
        f": ${{{name}:={double_quote(text, random)}}}",
        f"{name}=$(printf %s {quoted})",
        f"for {name} in {quoted}; do :; done",
        f"set_{name}() {{ {name}={quoted}; }}; set_{name}",
        f"set_{name}() {{ {name}=$1; }}; set_{name} {quoted}",
        f"{name}=; {name}+={quoted}",
        f"if true; then {name}={quoted}; fi",
        f"true && {name}={quoted}",
        f"{{ {name}={quoted}; }}",
        f"eval {name}={shlex.quote(quoted)}",
        f"mapfile -t {name} <<< {quoted}",
    ]
    if not text:
        variants = variants[:6]
    return random.choice(variants)


def _store_in_variable(text: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    name = next(names)
    variants: list[Callable[[], tuple[str, str]]] = [
        lambda: (_assign_variable(name, text, random), f'"${name}"'),
        lambda: (_assign_variable(name, text, random), f'"${{{name}}}"'),
        lambda: _split_over_two_variables(text, random, names),
        lambda: (f"{name}=({single_quote(text, random)} x)", f'"${{{name}[0]}}"'),
        lambda: (f"{name}=(x {single_quote(text, random)} y)", f'"${{{name}[@]:1:1}}"'),
        lambda: (f"{name}=(x {single_quote(text, random)})", f'"${{{name}[-1]}}"'),
        lambda: (f"declare -A {name}=([k]={single_quote(text, random)})", f'"${{{name}[k]}}"'),
        lambda: (f"{name}={single_quote('ab' + text + 'c', random)}", f'"${{{name}:2:{len(text)}}}"'),
        lambda: (f"{name}={single_quote('a.' + text, random)}", f'"${{{name}#a.}}"'),
        lambda: (f"{name}={single_quote(text + '.zz', random)}", f'"${{{name}%.zz}}"'),
        lambda: (f"{name}={single_quote(_insert_separators(text), random)}", f'"${{{name}//@@/}}"'),
        lambda: (f"{name}_r={single_quote(text, random)}; {name}={name}_r", f'"${{!{name}}}"'),
        lambda: (f"{name}_r={single_quote(text, random)}; declare -n {name}={name}_r", f'"${name}"'),
        lambda: (
            (f"set -- {single_quote(text, random)} x", '"$1"')
            if random.random() < 0.5
            else ("set --", single_quote(text, random))
        ),
        lambda: (
            (f"{name}={single_quote(text.upper(), random)}", f'"${{{name},,}}"')
            if text == text.lower() == text.upper().lower()
            else (_assign_variable(name, text, random), f'"${name}"')
        ),
        lambda: (f"{name}() {{ printf %s {single_quote(text, random)}; }}", f'"$({name})"'),
    ]
    return random.choice(variants)()


def _split_over_two_variables(text: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    first, second = next(names), next(names)
    middle = random.randint(0, len(text))
    before = (
        f"{_assign_variable(first, text[:middle], random)}; {_assign_variable(second, text[middle:], random)}"
    )
    return before, f'"${first}${second}"' if random.random() < 0.5 else f'"${{{first}}}""${{{second}}}"'


def _insert_separators(text: str) -> str:
    return "@@".join(text) + "@@"


# All words


def _respell_each_word(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    spelled = list(words.prefix)
    if words.plain.has_expansion and any(words.plain.has_expansion):
        rest = [
            words_as_typed if has_expansion else random.choice(list(WORD_SPELLINGS.values()))(text, random)
            for words_as_typed, text, has_expansion in zip(
                words.words_as_typed, words.plain.words, words.plain.has_expansion, strict=True
            )
        ]
    else:
        rest = [random.choice(list(WORD_SPELLINGS.values()))(text, random) for text in words.plain.words]
    return random.choice([" ", "  ", "\t", " \\\n "]).join([*spelled, *rest])


def _respell_with_variables(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    before: list[str] = []
    spelled = list(words.prefix)
    for words_as_typed, text, has_expansion in zip(
        words.words_as_typed, words.plain.words, words.plain.has_expansion, strict=True
    ):
        if has_expansion or (spelled and random.random() < 0.3):
            spelled.append(words_as_typed)
            continue
        setting, word = _store_in_variable(text, random, names)
        if setting.startswith("set --") and any(s.startswith("set --") for s in before):
            setting, word = _assign_variable(name := next(names), text, random), f'"${name}"'
        before.append(setting)
        spelled.append(word)
    return random.choice(["; ", "\n", " ;\n"]).join([*before, " ".join(spelled)])


def _write_as_braces(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    return (
        "{"
        + ",".join(
            double_quote(text, random) if random.random() < 0.5 else single_quote(text, random)
            for text in words.all
        )
        + "}"
    )


def _write_as_array(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    quoted = [random.choice([single_quote, double_quote, ansi_quote])(text, random) for text in words.all]
    middle = random.randint(1, len(quoted))
    variants = [
        f'{name}=({" ".join(quoted)}); "${{{name}[@]}}"',
        f'{name}=({" ".join(quoted[:middle])}); {name}+=({" ".join(quoted[middle:])}); "${{{name}[@]}}"',
        f'{"; ".join(f"{name}[{place}]={word}" for place, word in enumerate(quoted))}; "${{{name}[@]}}"',
        f'set -- {" ".join(quoted)}; "$@"',
        f'{name}() {{ "$@"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ "$1" "${{@:2}}"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ {quoted[0]} "$@"; }}; {name} {" ".join(quoted[1:])}',
        f'mapfile -t {name} <<< {ansi_quote(chr(10).join(words.all), random)}; "${{{name}[@]}}"',
        f"printf '%s\\0' {' '.join(quoted)} | xargs -0 env",
        f"printf '%s\\0' {' '.join(quoted[1:])} | xargs -0 {quoted[0]}" if len(quoted) > 1 else quoted[0],
        f"bash -c '\"$@\"' _ {' '.join(quoted)}",
        f'bash -c \'"$0" "$@"\' {" ".join(quoted)}',
        f"find . -maxdepth 0 -exec {' '.join(quoted)} \\;",
        f"for {name} in 1; do {' '.join(quoted)}; done",
    ]
    return random.choice(variants)


def _write_with_separators(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    """Write the words as one text that the shell splits at default or custom separators."""
    name = next(names)
    if any(not text or set(text) & set(" \t\n,%'") for text in words.all):
        return _write_as_array(words, random, names)
    variants = [
        f"IFS=,; {name}={single_quote(','.join(words.all), random)}; ${name}",
        f"IFS=%; {name}={single_quote('%'.join(words.all), random)}; ${name}",
        f"{name}={single_quote(' '.join(words.all), random)}; ${name}",
        f"{name}={ansi_quote(chr(9).join(words.all), random)}; ${name}",
        "$IFS".join(single_quote(text, random) for text in words.all),
        "${IFS}".join(_escape_characters(text, random) for text in words.all),
        "${IFS%??}".join(single_quote(text, random) for text in words.all),
        f"$(echo {single_quote(' '.join(words.all), random)})",
        f"$(tr , ' ' <<< {single_quote(','.join(words.all), random)})",
        f'read -ra {name} <<< {single_quote(" ".join(words.all), random)}; "${{{name}[@]}}"',
        f'IFS=, read -ra {name} <<< {single_quote(",".join(words.all), random)}; "${{{name}[@]}}"',
        f"read -r {name} <<< {single_quote(' '.join(words.all), random)}; ${name}",
        f"xargs env <<< {single_quote(' '.join(words.all), random)}",
        f"env -S {single_quote(' '.join(words.all), random)}",
    ]
    return random.choice(variants)


def _write_as_typed(words: PrefixedCommand, random: Random, names: Iterator[str]) -> str:
    return " ".join([*words.prefix, *words.words_as_typed])


COMMAND_SPELLINGS: dict[str, Callable[[PrefixedCommand, Random, Iterator[str]], str]] = {
    "each word anew": _respell_each_word,
    "words by variables": _respell_with_variables,
    "braces": _write_as_braces,
    "array": _write_as_array,
    "separators": _write_with_separators,
    "as typed": _write_as_typed,
}
EXPANSION_SAFE_SPELLINGS = frozenset({"each word anew", "words by variables", "as typed"})
