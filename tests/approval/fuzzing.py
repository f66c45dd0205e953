"""Other spellings of a command, all of which run the same program with the same words.

A spelling is made in three steps, each drawn by a seeded generator: something put in front of the words
(`nice`, `env`…), the words spelled anew (quotes, escapes, variables, encodings…), and the script that results
put inside of something (functions, loops, shells in shells, files, decoders…). Nothing here is proved by
reasoning: `recording` tells whether a spelling really runs what it should.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["INSIDE", "WHOLE", "WORDS", "Plain", "Spelling", "plain_command", "respell", "spell_inside"]

UNSPLIT = frozenset(";&|<>()`\n\\!#=\"'")  # signs that make more of a command than a list of words
EXPANDED = frozenset("$~*?[]{}")
# Started by the shell itself: no recorder can stand for them, and `kill -9 -1` would be a real one.
BUILTIN_NAMES = """
alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo
enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd
printf pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type
typeset ulimit umask unalias unset wait if then else elif fi for while until do done case esac in function
select time coproc . : [ [[ ! { }
"""
BUILTINS = frozenset(BUILTIN_NAMES.split())


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
class Spelling:
    script: str
    steps: tuple[str, ...]


def plain_command(command: str) -> Plain | None:
    """The command as words; None where it is more than one program and its words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or words[0].rpartition("/")[2] in BUILTINS or "\r" in command or not command.isprintable():
        return None
    words[0] = words[0].rpartition("/")[2]
    if UNSPLIT & set(command) - set("\"'=") or "=" in words[0] or not words[0].strip("."):
        return None
    typed = tuple(bool(EXPANDED & set(word)) for word in words)
    quoted = "'" in command or '"' in command
    if typed[0] or (quoted and any(typed)) or "$(" in command:
        return None
    return Plain(tuple(words), typed)


def respell(plain: Plain, random: Random, steps: int) -> Spelling:
    """The command spelled anew by so many steps, one of which is about its words."""
    names = _names()
    in_front = steps > 1 and random.random() < 0.3
    prefix = random.choice(IN_FRONT) if in_front else ()
    possible = [name for name in WHOLE if not any(plain.typed) or name in KEEP_TYPED]
    name = random.choice(possible)
    done = [*(" ".join(prefix) for _ in range(in_front)), name]
    script = WHOLE[name](_Words(plain, prefix, _verbatim(plain)), random, names)
    for _ in range(steps - len(done)):
        script, name = _wrapped(script, random, names)
        done.append(name)
    return Spelling(script, tuple(done))


def spell_inside(script: str, random: Random, steps: int) -> Spelling:
    """The script inside of so many things."""
    names, done = _names(), []
    for _ in range(steps):
        script, name = _wrapped(script, random, names)
        done.append(name)
    return Spelling(script, tuple(done))


def _wrapped(script: str, random: Random, names: Iterator[str]) -> tuple[str, str]:
    """The script inside of something, and inside of what."""
    name = random.choice(sorted(INSIDE))
    return INSIDE[name](script, random, names), name


@dataclass(frozen=True, slots=True)
class _Words:
    plain: Plain
    prefix: Sequence[str]
    verbatim: Sequence[str]

    @property
    def all(self) -> list[str]:
        """Plain texts, for spellings of commands without expansions."""
        return [*self.prefix, *self.plain.words]


def _verbatim(plain: Plain) -> list[str]:
    return [
        word if typed else shlex.quote(word) for word, typed in zip(plain.words, plain.typed, strict=True)
    ]


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"v{number}"


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


def _single(text: str, random: Random) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _double(text: str, random: Random) -> str:
    return '"' + "".join("\\" + c if c in '"\\$`' else c for c in text) + '"'


def _escaped(text: str, random: Random) -> str:
    return "".join("\\" + c if random.random() < 0.6 or not c.isalnum() else c for c in text) or "''"


def _mixed(text: str, random: Random) -> str:
    ways: list[Callable[[str, Random], str]] = [
        _single,
        _double,
        _ansi,
        lambda c, r: shlex.quote(c),
        _escaped,
    ]
    return "".join(random.choice(ways)(c, random) for c in text) or '""'


def _ansi(text: str, random: Random) -> str:
    return "$'" + "".join(_ansi_character(c, random) for c in text) + "'"


def _ansi_character(c: str, random: Random) -> str:
    if not c.isascii():
        return f"\\U{ord(c):08x}"
    ways = [f"\\x{ord(c):02x}", f"\\{ord(c):03o}", f"\\u{ord(c):04x}"]
    if c.isalnum() or c in "/-. ":
        ways.append(c)
    return random.choice(ways)


def _localized(text: str, random: Random) -> str:
    return "$" + _double(text, random)


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
    quoted = _double(text, random)
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
        f'"$(tr a-z n-za-m <<< {shlex.quote(_rot13(text))})"',
        f'"$(cat <<< {single})"',
        f'"$(sed s/^x// <<< {shlex.quote("x" + text)})"',
        f'"$(cut -c2- <<< {shlex.quote("x" + text)})"',
    ]
    if "'" not in text and "\\" not in text and not text.startswith("-"):
        ways.append(f'"`echo {single}`"')
    return random.choice(ways)


def _rot13(text: str) -> str:
    return "".join(chr((ord(c) - 97 + 13) % 26 + 97) if "a" <= c <= "z" else c for c in text)


WORDS: dict[str, Callable[[str, Random], str]] = {
    "single quotes": _single,
    "double quotes": _double,
    "backslashes": _escaped,
    "mixed quotes": _mixed,
    "ANSI-C string": _ansi,
    "localized string": _localized,
    "nothing between letters": _with_nothing,
    "default value": _default,
    "substitution": _printed,
}


# One word by a variable: what must come before, and the word


def _set(name: str, text: str, random: Random) -> str:
    quoted = random.choice([_single, _double, _mixed, _ansi])(text, random)
    ways = [
        f"{name}={quoted}",
        f"export {name}={quoted}",
        f"declare {name}={quoted}",
        f"declare -x {name}={quoted}",
        f"readonly {name}={quoted}",
        f"typeset {name}={quoted}",
        f"printf -v {name} %s {quoted}",
        f"IFS= read -r {name} <<< {quoted}",
        f": ${{{name}:={_double(text, random)}}}",
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
        lambda: (f"{name}=({_single(text, random)} x)", f'"${{{name}[0]}}"'),
        lambda: (f"{name}=(x {_single(text, random)} y)", f'"${{{name}[@]:1:1}}"'),
        lambda: (f"{name}=(x {_single(text, random)})", f'"${{{name}[-1]}}"'),
        lambda: (f"declare -A {name}=([k]={_single(text, random)})", f'"${{{name}[k]}}"'),
        lambda: (f"{name}={_single('ab' + text + 'c', random)}", f'"${{{name}:2:{len(text)}}}"'),
        lambda: (f"{name}={_single('a.' + text, random)}", f'"${{{name}#a.}}"'),
        lambda: (f"{name}={_single(text + '.zz', random)}", f'"${{{name}%.zz}}"'),
        lambda: (f"{name}={_single(_stuffed(text), random)}", f'"${{{name}//@@/}}"'),
        lambda: (f"{name}_r={_single(text, random)}; {name}={name}_r", f'"${{!{name}}}"'),
        lambda: (f"{name}_r={_single(text, random)}; declare -n {name}={name}_r", f'"${name}"'),
        lambda: (
            (f"set -- {_single(text, random)} x", '"$1"')
            if random.random() < 0.5
            else ("set --", _single(text, random))
        ),
        lambda: (
            (f"{name}={_single(text.upper(), random)}", f'"${{{name},,}}"')
            if text == text.lower() == text.upper().lower()
            else (_set(name, text, random), f'"${name}"')
        ),
        lambda: (f"{name}() {{ printf %s {_single(text, random)}; }}", f'"$({name})"'),
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


def _each_word(words: _Words, random: Random, names: Iterator[str]) -> str:
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


def _by_variables(words: _Words, random: Random, names: Iterator[str]) -> str:
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


def _braces(words: _Words, random: Random, names: Iterator[str]) -> str:
    return (
        "{"
        + ",".join(
            _double(text, random) if random.random() < 0.5 else _single(text, random) for text in words.all
        )
        + "}"
    )


def _array(words: _Words, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    quoted = [random.choice([_single, _double, _ansi])(text, random) for text in words.all]
    middle = random.randint(1, len(quoted))
    ways = [
        f'{name}=({" ".join(quoted)}); "${{{name}[@]}}"',
        f'{name}=({" ".join(quoted[:middle])}); {name}+=({" ".join(quoted[middle:])}); "${{{name}[@]}}"',
        f'{"; ".join(f"{name}[{place}]={word}" for place, word in enumerate(quoted))}; "${{{name}[@]}}"',
        f'set -- {" ".join(quoted)}; "$@"',
        f'{name}() {{ "$@"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ "$1" "${{@:2}}"; }}; {name} {" ".join(quoted)}',
        f'{name}() {{ {quoted[0]} "$@"; }}; {name} {" ".join(quoted[1:])}',
        f'mapfile -t {name} <<< {_ansi(chr(10).join(words.all), random)}; "${{{name}[@]}}"',
        f"printf '%s\\0' {' '.join(quoted)} | xargs -0 env",
        f"printf '%s\\0' {' '.join(quoted[1:])} | xargs -0 {quoted[0]}" if len(quoted) > 1 else quoted[0],
        f"bash -c '\"$@\"' _ {' '.join(quoted)}",
        f'bash -c \'"$0" "$@"\' {" ".join(quoted)}',
        f"find . -maxdepth 0 -exec {' '.join(quoted)} \\;",
        f"for {name} in 1; do {' '.join(quoted)}; done",
    ]
    return random.choice(ways)


def _separated(words: _Words, random: Random, names: Iterator[str]) -> str:
    """Split by the shell at separators of its own or ours."""
    name = next(names)
    if any(not text or set(text) & set(" \t\n,%'") for text in words.all):
        return _array(words, random, names)
    ways = [
        f"IFS=,; {name}={_single(','.join(words.all), random)}; ${name}",
        f"IFS=%; {name}={_single('%'.join(words.all), random)}; ${name}",
        f"{name}={_single(' '.join(words.all), random)}; ${name}",
        f"{name}={_ansi(chr(9).join(words.all), random)}; ${name}",
        "$IFS".join(_single(text, random) for text in words.all),
        "${IFS}".join(_escaped(text, random) for text in words.all),
        "${IFS%??}".join(_single(text, random) for text in words.all),
        f"$(echo {_single(' '.join(words.all), random)})",
        f"$(tr , ' ' <<< {_single(','.join(words.all), random)})",
        f'read -ra {name} <<< {_single(" ".join(words.all), random)}; "${{{name}[@]}}"',
        f'IFS=, read -ra {name} <<< {_single(",".join(words.all), random)}; "${{{name}[@]}}"',
        f"read -r {name} <<< {_single(' '.join(words.all), random)}; ${name}",
        f"xargs env <<< {_single(' '.join(words.all), random)}",
        f"env -S {_single(' '.join(words.all), random)}",
    ]
    return random.choice(ways)


def _as_typed(words: _Words, random: Random, names: Iterator[str]) -> str:
    return " ".join([*words.prefix, *words.verbatim])


WHOLE: dict[str, Callable[[_Words, Random, Iterator[str]], str]] = {
    "each word anew": _each_word,
    "words by variables": _by_variables,
    "braces": _braces,
    "array": _array,
    "separators": _separated,
    "as typed": _as_typed,
}
KEEP_TYPED = frozenset({"each word anew", "words by variables", "as typed"})


# Inside of something


def _quoted(script: str, random: Random) -> str:
    return random.choice([_single, _single, _double, _ansi])(script, random)


def _ended(script: str) -> str:
    return script + "\n"


def _bash_c(script: str, random: Random, names: Iterator[str]) -> str:
    options = random.choice(["-c", "-c", "-ec", "--norc -c", "-e -c", "-c --", "+x -c"])
    shell = random.choice(["bash", "bash", "env bash", "nice bash", "$BASH", "exec bash"])
    return f"{shell} {options} {_quoted(script, random)}"


def _eval(script: str, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    return random.choice(
        [
            f"eval {_quoted(script, random)}",
            f"eval -- {_quoted(script, random)}",
            f"builtin eval {_quoted(script, random)}",
            f'{name}={_quoted(script, random)}; eval "${name}"',
            f'{name}={_quoted(script, random)}; bash -c "${name}"',
            f'eval "$(printf %s {_quoted(script, random)})"',
        ]
    )


def _piped(script: str, random: Random, names: Iterator[str]) -> str:
    code = base64.b64encode(_ended(script).encode()).decode()
    hexadecimal = _ended(script).encode().hex()
    shell = random.choice(["bash", "bash", "env bash", "bash -s", "bash /dev/stdin", "bash -"])
    octal = "".join(f"\\{byte:03o}" for byte in _ended(script).encode())
    backwards = "\n".join(line[::-1] for line in script.split("\n"))
    return random.choice(
        [
            f"printf '%s\\n' {_quoted(script, random)} | {shell}",
            f"cat <<< {_quoted(script, random)} | {shell}",
            f"printf '{octal}' | {shell}",
            f"echo {code} | base64 -d | {shell}",
            f"base64 -d <<< {code} | {shell}",
            f'{shell} <<< "$(echo {code} | base64 --decode)"',
            f"{shell} <(base64 -d <<< {code})"
            if shell.endswith("bash")
            else f"base64 -d <<< {code} | {shell}",
            f'eval "$(base64 -d <<< {code})"',
            f"echo {hexadecimal} | xxd -r -p | {shell}",
            f"rev <<< {_single(backwards, random)} | {shell}",
            f"tr a-z n-za-m <<< {_single(_rot13(script), random)} | {shell}",
            f"{shell} <<< {_quoted(script, random)}",
            f"source /dev/stdin <<< {_quoted(script, random)}",
            f"source <(printf %s {_quoted(script, random)})",
            f". <(cat <<< {_quoted(script, random)})",
            f"printf '%s\\n' {_quoted(script, random)} | cat | tee /dev/null | {shell}",
            f'bash -c "$(base64 -d <<< {code})"',
            f"bash < <(printf %s {_quoted(script, random)})",
        ]
    )


def _here_document(script: str, random: Random, names: Iterator[str]) -> str:
    end = f"END{next(names)}"
    expanding = "".join("\\" + c if c in "\\$`" else c for c in script)
    return random.choice(
        [
            f"bash <<'{end}'\n{script}\n{end}\n",
            f"bash <<\\{end}\n{script}\n{end}\n",
            f'cat <<"{end}" | bash\n{script}\n{end}\n',
            f"bash <<{end}\n{expanding}\n{end}\n",
            f"eval \"$(cat <<'{end}'\n{script}\n{end}\n)\"",
            f"source /dev/stdin <<'{end}'\n{script}\n{end}\n",
        ]
    )


def _from_file(script: str, random: Random, names: Iterator[str]) -> str:
    file = f"{next(names)}.sh"
    end = f"END{file[:-3]}"
    writing = random.choice(
        [
            f"printf '%s\\n' {_quoted(script, random)} > {file}",
            f"cat > {file} <<'{end}'\n{script}\n{end}\n",
            f"echo {base64.b64encode(_ended(script).encode()).decode()} | base64 -d > {file}",
            f"printf '%s\\n' {_quoted(script, random)} | tee {file} > /dev/null",
        ]
    )
    running = random.choice(
        [
            f"bash {file}",
            f"bash ./{file}",
            f". ./{file}",
            f"source ./{file}",
            f"bash < {file}",
            f"cat {file} | bash",
        ]
    )
    return f"{writing}\n{running}"


def _function(script: str, random: Random, names: Iterator[str]) -> str:
    name = f"f_{next(names)}"
    return random.choice(
        [
            f"{name}() {{\n{script}\n}}; {name}",
            f"function {name} {{\n{script}\n}}\n{name} a b",
            f"{name}() (\n{script}\n)\n{name}",
            f"{name}() {{\n{script}\n}}; g_{name}() {{ {name}; }}; g_{name}",
            f"{name}() {{\n{script}\n}}; $(echo {name})",
            f"{name}() {{\n{script}\n}}; eval {name}",
        ]
    )


def _alias(script: str, random: Random, names: Iterator[str]) -> str:
    name = f"a{next(names)}"
    if "\n" in script:
        return f"{{\n{script}\n}}"
    return f"shopt -s expand_aliases\nalias {name}={_quoted(script, random)}\n{name}"


def _compound(script: str, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    return random.choice(
        [
            f"if true; then\n{script}\nfi",
            f"if false; then :; else\n{script}\nfi",
            f"if :; then if ! false; then\n{script}\nfi; fi",
            f"while true; do\n{script}\nbreak; done",
            f"until false; do\n{script}\nbreak; done",
            f"for {name} in a; do\n{script}\ndone",
            f"for (({name}=0; {name}<1; {name}++)); do\n{script}\ndone",
            f"case x in y) :;; *)\n{script}\n;; esac",
            f"case x in (x)\n{script}\nesac",
            f"{{\n{script}\n}}",
            f"(\n{script}\n)",
            f"( (\n{script}\n) )",
            f"{name}=$(\n{script}\n)",
            f': "$(\n{script}\n)"',
            f"[[ -n $(\n{script}\n) ]]",
            f"! {{\n{script}\n}}",
            f"time {{\n{script}\n}}",
            f"{{\n{script}\n}} > /dev/null 2>&1",
            f"{{\n{script}\n}} &\nwait",
            f"coproc {{\n{script}\n}}\nwait",
            f"cat < <(\n{script}\n)",
            f"echo $((0$(\n{script}\n)))",
            f"cat <<EOD{name}\n$(\n{script}\n)\nEOD{name}\n",
        ]
    )


def _chain(script: str, random: Random, names: Iterator[str]) -> str:
    grouped = f"{{\n{script}\n}}"
    before = random.choice([1, 2, 3, 60])
    harmless = [
        "true",
        ":",
        "ls -la",
        "echo 'rm -rf /'",
        "git status",
        "[ 1 -eq 1 ]",
        "cd .",
        "export LANG=C",
    ]
    parts = [random.choice(harmless) for _ in range(before)]
    joins = [
        random.choice([" ; ", " && ", "\n", " # a comment\n", " &&\n", " | cat ; ", " >/dev/null; "])
        for _ in parts
    ]
    after = random.choice(
        ["", "; ls", " && git status", " || true", " | cat", "\n# the end", " 2>&1", " &\nwait"]
    )
    return "".join(part + join for part, join in zip(parts, joins, strict=True)) + grouped + after


def _trap(script: str, random: Random, names: Iterator[str]) -> str:
    return f"trap {_quoted(script, random)} {random.choice(['EXIT', '0', 'exit'])}"


def _read_lines(script: str, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    if "\n" in script:
        return f'{name}={_quoted(script, random)}\neval "${name}"'
    return random.choice(
        [
            f'while IFS= read -r {name}; do eval "${name}"; done <<< {_quoted(script, random)}',
            f"printf '%s\\n' {_quoted(script, random)} | while IFS= read {name}; do eval \"${name}\"; done",
            f'for {name} in {_quoted(script, random)}; do eval "${name}"; done',
            f'mapfile -t {name} <<< {_quoted(script, random)}; eval "${{{name}[0]}}"',
        ]
    )


def _xargs(script: str, random: Random, names: Iterator[str]) -> str:
    return random.choice(
        [
            f"echo x | xargs bash -c {_quoted(script, random)}",
            f"printf '%s\\0' {_quoted(script, random)} | xargs -0 bash -c",
            f"printf '%s\\0' {_quoted(script, random)} | xargs -0 -I@@ bash -c @@",
            f"find . -maxdepth 0 -exec bash -c {_quoted(script, random)} \\;",
            f"find . -maxdepth 0 -exec bash -c {_quoted(script, random)} _ {{}} +",
        ]
    )


def _noise(script: str, random: Random, names: Iterator[str]) -> str:
    return random.choice(
        [
            f"# what follows is harmless\n\n   {script}   # really",
            f"\n\n\t{script}\n\n",
            f"echo \"# not a comment\" '{{' ; {script}",
            f': \'text with ; and $(nothing)\' "and \\" more"; {script}',
        ]
    )


INSIDE: dict[str, Callable[[str, Random, Iterator[str]], str]] = {
    "bash -c": _bash_c,
    "eval": _eval,
    "piped into a shell": _piped,
    "here-document": _here_document,
    "file": _from_file,
    "function": _function,
    "alias": _alias,
    "compound": _compound,
    "chain": _chain,
    "trap": _trap,
    "lines read": _read_lines,
    "xargs and find": _xargs,
    "noise": _noise,
}
