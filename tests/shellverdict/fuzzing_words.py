"""Other spellings of words: quotes, escapes, variables, arrays, encodings; and what can stand in front."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["IN_FRONT", "KEEP_TYPED", "WHOLE", "Plain", "Words", "ansi", "double", "rot13", "single"]


@dataclass(frozen=True, slots=True)
class Plain:
    """A command that is one program and its words; words with an expansion are kept as they were typed."""

    words: tuple[str, ...]
    typed: tuple[bool, ...]

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def script(self) -> str:
        return " ".join(_verbatim(self))


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a command, and those put in front of them."""

    plain: Plain
    prefix: Sequence[str]

    @property
    def verbatim(self) -> list[str]:
        return _verbatim(self.plain)

    @property
    def all(self) -> list[str]:
        """Plain texts, for spellings of commands without expansions."""
        return [*self.prefix, *self.plain.words]


def _verbatim(plain: Plain) -> list[str]:
    return [
        word if typed else shlex.quote(word) for word, typed in zip(plain.words, plain.typed, strict=True)
    ]


# In front of the words


IN_FRONT: tuple[tuple[str, ...], ...] = (
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


def single(text: str, random: Random) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def double(text: str, random: Random) -> str:
    return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'


def _escaped(text: str, random: Random) -> str:
    return "".join("\\" + c if random.random() < 0.6 or not c.isalnum() else c for c in text) or "''"


def _mixed(text: str, random: Random) -> str:
    ways: list[Callable[[str, Random], str]] = [
        single,
        double,
        ansi,
        lambda c, r: shlex.quote(c),
        _escaped,
    ]
    return "".join(random.choice(ways)(c, random) for c in text) or '""'


def ansi(text: str, random: Random) -> str:
    return "$'" + "".join(_ansi_character(c, random) for c in text) + "'"


def _ansi_character(c: str, random: Random) -> str:
    if not c.isascii():
        return f"\\U{ord(c):08x}"
    ways = [f"\\x{ord(c):02x}", f"\\{ord(c):03o}", f"\\u{ord(c):04x}"]
    if c.isalnum() or c in "/-. ":
        ways.append(c)
    return random.choice(ways)


def _localized(text: str, random: Random) -> str:
    return "$" + double(text, random)


def _with_nothing(text: str, random: Random) -> str:
    """Things between the letters that expand to nothing."""
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


def _default(text: str, random: Random) -> str:
    quoted = double(text, random)
    return (
        random.choice(['"${nope:-%s}"', '"${nope-%s}"', "${nope:-%s}", "${nope=%s}"]) % quoted
        if text
        else '""'
    )


def _printed(text: str, random: Random) -> str:
    single = shlex.quote(text)
    octal = "".join(f"\\{byte:03o}" for byte in text.encode())
    hexadecimal = "".join(f"\\x{byte:02x}" for byte in text.encode())
    ways = [
        f'"$(printf %s {single})"',
        f'"$(echo {single})"' if not text.startswith("-") else f'"$(printf "%s" {single})"',
        f"\"$(printf '{octal}')\"",
        f"\"$(printf '%b' '{hexadecimal}')\"",
        f"\"$(echo -e '{hexadecimal}')\"",
        f'"$(base64 -d <<< {base64.b64encode(text.encode()).decode()})"',
        f'"$(echo {base64.b64encode(text.encode()).decode()} | base64 --decode)"',
        f'"$(xxd -r -p <<< {text.encode().hex()})"',
        f'"$(rev <<< {shlex.quote(text[::-1])})"',
        f'"$(tr a-z n-za-m <<< {shlex.quote(rot13(text))})"',
        f'"$(cat <<< {single})"',
        f'"$(sed s/^x// <<< {shlex.quote("x" + text)})"',
        f'"$(cut -c2- <<< {shlex.quote("x" + text)})"',
    ]
    if "'" not in text and "\\" not in text and not text.startswith("-"):
        ways.append(f'"`echo {single}`"')
    return random.choice(ways)


def rot13(text: str) -> str:
    return "".join(chr((ord(c) - 97 + 13) % 26 + 97) if "a" <= c <= "z" else c for c in text)


WORDS: dict[str, Callable[[str, Random], str]] = {
    "single quotes": single,
    "double quotes": double,
    "backslashes": _escaped,
    "mixed quotes": _mixed,
    "ANSI-C string": ansi,
    "localized string": _localized,
    "nothing between letters": _with_nothing,
    "default value": _default,
    "substitution": _printed,
}


# One word by a variable: what must come before, and the word


def _set(name: str, text: str, random: Random) -> str:
    quoted = random.choice([single, double, _mixed, ansi])(text, random)
    ways = [
        f"{name}={quoted}",
        f"export {name}={quoted}",
        f"declare {name}={quoted}",
        f"declare -x {name}={quoted}",
        f"readonly {name}={quoted}",
        f"typeset {name}={quoted}",
        f"printf -v {name} %s {quoted}",
        f"IFS= read -r {name} <<< {quoted}",
        f": ${{{name}:={double(text, random)}}}",
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
        ways = ways[:6]
    return random.choice(ways)


def _by_variable(text: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    name = next(names)
    ways: list[Callable[[], tuple[str, str]]] = [
        lambda: (_set(name, text, random), f'"${name}"'),
        lambda: (_set(name, text, random), f'"${{{name}}}"'),
        lambda: _in_two(text, random, names),
        lambda: (f"{name}=({single(text, random)} x)", f'"${{{name}[0]}}"'),
        lambda: (f"{name}=(x {single(text, random)} y)", f'"${{{name}[@]:1:1}}"'),
        lambda: (f"{name}=(x {single(text, random)})", f'"${{{name}[-1]}}"'),
        lambda: (f"declare -A {name}=([k]={single(text, random)})", f'"${{{name}[k]}}"'),
        lambda: (f"{name}={single('ab' + text + 'c', random)}", f'"${{{name}:2:{len(text)}}}"'),
        lambda: (f"{name}={single('a.' + text, random)}", f'"${{{name}#a.}}"'),
        lambda: (f"{name}={single(text + '.zz', random)}", f'"${{{name}%.zz}}"'),
        lambda: (f"{name}={single(_stuffed(text), random)}", f'"${{{name}//@@/}}"'),
        lambda: (f"{name}_r={single(text, random)}; {name}={name}_r", f'"${{!{name}}}"'),
        lambda: (f"{name}_r={single(text, random)}; declare -n {name}={name}_r", f'"${name}"'),
        lambda: (
            (f"set -- {single(text, random)} x", '"$1"')
            if random.random() < 0.5
            else ("set --", single(text, random))
        ),
        lambda: (
            (f"{name}={single(text.upper(), random)}", f'"${{{name},,}}"')
            if text == text.lower() == text.upper().lower()
            else (_set(name, text, random), f'"${name}"')
        ),
        lambda: (f"{name}() {{ printf %s {single(text, random)}; }}", f'"$({name})"'),
    ]
    return random.choice(ways)()


def _in_two(text: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    first, second = next(names), next(names)
    middle = random.randint(0, len(text))
    before = f"{_set(first, text[:middle], random)}; {_set(second, text[middle:], random)}"
    return before, f'"${first}${second}"' if random.random() < 0.5 else f'"${{{first}}}""${{{second}}}"'


def _stuffed(text: str) -> str:
    return "@@".join(text) + "@@"


# All words


def _each_word(words: Words, random: Random, names: Iterator[str]) -> str:
    spelled = list(words.prefix)
    if words.plain.typed and any(words.plain.typed):
        rest = [
            verbatim if typed else random.choice(list(WORDS.values()))(text, random)
            for verbatim, text, typed in zip(
                words.verbatim, words.plain.words, words.plain.typed, strict=True
            )
        ]
    else:
        rest = [random.choice(list(WORDS.values()))(text, random) for text in words.plain.words]
    return random.choice([" ", "  ", "\t", " \\\n "]).join([*spelled, *rest])


def _by_variables(words: Words, random: Random, names: Iterator[str]) -> str:
    before: list[str] = []
    spelled = list(words.prefix)
    for verbatim, text, typed in zip(words.verbatim, words.plain.words, words.plain.typed, strict=True):
        if typed or (spelled and random.random() < 0.3):
            spelled.append(verbatim)
            continue
        setting, word = _by_variable(text, random, names)
        if setting.startswith("set --") and any(s.startswith("set --") for s in before):
            setting, word = _set(name := next(names), text, random), f'"${name}"'
        before.append(setting)
        spelled.append(word)
    return random.choice(["; ", "\n", " ;\n"]).join([*before, " ".join(spelled)])


def _braces(words: Words, random: Random, names: Iterator[str]) -> str:
    return (
        "{"
        + ",".join(
            double(text, random) if random.random() < 0.5 else single(text, random) for text in words.all
        )
        + "}"
    )


def _array(words: Words, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    quoted = [random.choice([single, double, ansi])(text, random) for text in words.all]
    middle = random.randint(1, len(quoted))
    ways = [
        f'{name}=({" ".join(quoted)}); "${{{name}[@]}}"',
        f'{name}=({" ".join(quoted[:middle])}); {name}+=({" ".join(quoted[middle:])}); "${{{name}[@]}}"',
        f'{"; ".join(f"{name}[{place}]={word}" for place, word in enumerate(quoted))}; "${{{name}[@]}}"',
        f'set -- {" ".join(quoted)}; "$@"',
        f'{name}() {{ "$@"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ "$1" "${{@:2}}"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ {quoted[0]} "$@"; }}; {name} {" ".join(quoted[1:])}',
        f'mapfile -t {name} <<< {ansi(chr(10).join(words.all), random)}; "${{{name}[@]}}"',
        f"printf '%s\\0' {' '.join(quoted)} | xargs -0 env",
        f"printf '%s\\0' {' '.join(quoted[1:])} | xargs -0 {quoted[0]}" if len(quoted) > 1 else quoted[0],
        f"bash -c '\"$@\"' _ {' '.join(quoted)}",
        f'bash -c \'"$0" "$@"\' {" ".join(quoted)}',
        f"find . -maxdepth 0 -exec {' '.join(quoted)} \\;",
        f"for {name} in 1; do {' '.join(quoted)}; done",
    ]
    return random.choice(ways)


def _separated(words: Words, random: Random, names: Iterator[str]) -> str:
    """Split by the shell at separators of its own or ours."""
    name = next(names)
    if any(not text or set(text) & set(" \t\n,%'") for text in words.all):
        return _array(words, random, names)
    ways = [
        f"IFS=,; {name}={single(','.join(words.all), random)}; ${name}",
        f"IFS=%; {name}={single('%'.join(words.all), random)}; ${name}",
        f"{name}={single(' '.join(words.all), random)}; ${name}",
        f"{name}={ansi(chr(9).join(words.all), random)}; ${name}",
        "$IFS".join(single(text, random) for text in words.all),
        "${IFS}".join(_escaped(text, random) for text in words.all),
        "${IFS%??}".join(single(text, random) for text in words.all),
        f"$(echo {single(' '.join(words.all), random)})",
        f"$(tr , ' ' <<< {single(','.join(words.all), random)})",
        f'read -ra {name} <<< {single(" ".join(words.all), random)}; "${{{name}[@]}}"',
        f'IFS=, read -ra {name} <<< {single(",".join(words.all), random)}; "${{{name}[@]}}"',
        f"read -r {name} <<< {single(' '.join(words.all), random)}; ${name}",
        f"xargs env <<< {single(' '.join(words.all), random)}",
        f"env -S {single(' '.join(words.all), random)}",
    ]
    return random.choice(ways)


def _as_typed(words: Words, random: Random, names: Iterator[str]) -> str:
    return " ".join([*words.prefix, *words.verbatim])


WHOLE: dict[str, Callable[[Words, Random, Iterator[str]], str]] = {
    "each word anew": _each_word,
    "words by variables": _by_variables,
    "braces": _braces,
    "array": _array,
    "separators": _separated,
    "as typed": _as_typed,
}
KEEP_TYPED = frozenset({"each word anew", "words by variables", "as typed"})
