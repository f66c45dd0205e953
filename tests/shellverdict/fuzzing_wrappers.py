"""Wrappers around a script that run the same programs with the same arguments.

Functions, loops, chains, nested shells, files, decoders. Each takes a script and returns a longer one.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator
from random import Random

from tests.shellverdict.fuzzing_words import ansi_quote, apply_rot13, double_quote, single_quote

__all__ = ["WRAPPERS"]


def _quote_script(script: str, random: Random) -> str:
    return random.choice([single_quote, single_quote, double_quote, ansi_quote])(script, random)


def _with_newline(script: str) -> str:
    return script + "\n"


def _wrap_in_bash_c(script: str, random: Random, names: Iterator[str]) -> str:
    options = random.choice(["-c", "-c", "-ec", "--norc -c", "-e -c", "-c --", "+x -c"])
    shell = random.choice(["bash", "bash", "env bash", "nice bash", "$BASH", "exec bash"])
    return f"{shell} {options} {_quote_script(script, random)}"


def _wrap_in_eval(script: str, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    return random.choice(
        [
            f"eval {_quote_script(script, random)}",
            f"eval -- {_quote_script(script, random)}",
            f"builtin eval {_quote_script(script, random)}",
            f'{name}={_quote_script(script, random)}; eval "${name}"',
            f'{name}={_quote_script(script, random)}; bash -c "${name}"',
            f'eval "$(printf %s {_quote_script(script, random)})"',
        ]
    )


def _pipe_into_shell(script: str, random: Random, names: Iterator[str]) -> str:
    code = base64.b64encode(_with_newline(script).encode()).decode()
    hexadecimal = _with_newline(script).encode().hex()
    shell = random.choice(["bash", "bash", "env bash", "bash -s", "bash /dev/stdin", "bash -"])
    octal = "".join(f"\\{byte:03o}" for byte in _with_newline(script).encode())
    base32 = base64.b32encode(_with_newline(script).encode()).decode()
    zipped = base64.b64encode(gzip.compress(_with_newline(script).encode(), mtime=0)).decode()
    backwards = "\n".join(line[::-1] for line in script.split("\n"))
    return random.choice(
        [
            f"printf '%s\\n' {_quote_script(script, random)} | {shell}",
            f"cat <<< {_quote_script(script, random)} | {shell}",
            f"printf '{octal}' | {shell}",
            f"echo {code} | base64 -d | {shell}",
            f"base64 -d <<< {code} | {shell}",
            f'{shell} <<< "$(echo {code} | base64 --decode)"',
            f"{shell} <(base64 -d <<< {code})"
            if shell.endswith("bash")
            else f"base64 -d <<< {code} | {shell}",
            f'eval "$(base64 -d <<< {code})"',
            f"echo {hexadecimal} | xxd -r -p | {shell}",
            f"rev <<< {single_quote(backwards, random)} | {shell}",
            f"tr a-z n-za-m <<< {single_quote(apply_rot13(script), random)} | {shell}",
            f"{shell} <<< {_quote_script(script, random)}",
            f"source /dev/stdin <<< {_quote_script(script, random)}",
            f"source <(printf %s {_quote_script(script, random)})",
            f". <(cat <<< {_quote_script(script, random)})",
            f"printf '%s\\n' {_quote_script(script, random)} | cat | tee /dev/null | {shell}",
            f'bash -c "$(base64 -d <<< {code})"',
            f"bash < <(printf %s {_quote_script(script, random)})",
            f"base32 -d <<< {base32} | {shell}",
            f"base64 -d <<< {zipped} | gzip -dc | {shell}",
            f"printf '%b' '{octal}' | {shell}",
            f"echo {code} | rev | rev | base64 -d | {shell}",
            f"{{ base64 -d <<< {code}; }} | {shell}",
            f"(echo {code} | base64 -d) | {shell}",
            f"xxd -p -r <<< {hexadecimal} | base64 -w0 | base64 -d | {shell}",
        ]
    )


def _wrap_in_heredoc(script: str, random: Random, names: Iterator[str]) -> str:
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


def _write_and_run_file(script: str, random: Random, names: Iterator[str]) -> str:
    file = f"{next(names)}.sh"
    end = f"END{file[:-3]}"
    writing = random.choice(
        [
            f"printf '%s\\n' {_quote_script(script, random)} > {file}",
            f"cat > {file} <<'{end}'\n{script}\n{end}\n",
            f"echo {base64.b64encode(_with_newline(script).encode()).decode()} | base64 -d > {file}",
            f"printf '%s\\n' {_quote_script(script, random)} | tee {file} > /dev/null",
            f"{{ printf '%s\\n' {_quote_script(script, random)}; }} >> {file}",
            f"mkdir d{file}; cd d{file}; printf '%s\\n' {_quote_script(script, random)} > {file}",
            f"exec 5> {file}; printf '%s\\n' {_quote_script(script, random)} >&5; exec 5>&-",
            f"printf '%s\\n' {_quote_script(script, random)} > x{file}; cp x{file} {file}",
            f"printf '%s\\n' {_quote_script(script, random)} > x{file}; ln -s x{file} {file}",
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
            f'bash -c "$(cat {file})"',
            f'eval "$(<{file})"',
            f'bash -c "$(< {file})"',
            f". <(cat {file})",
            f"BASH_ENV=./{file} bash -c :",
            f"bash -e -- {file} a b",
        ]
    )
    return f"{writing}\n{running}"


def _wrap_in_function(script: str, random: Random, names: Iterator[str]) -> str:
    name = f"f_{next(names)}"
    return random.choice(
        [
            f"{name}() {{\n{script}\n}}; {name}",
            f"function {name} {{\n{script}\n}}\n{name} a b",
            f"{name}() (\n{script}\n)\n{name}",
            f"{name}() {{\n{script}\n}}; g_{name}() {{ {name}; }}; g_{name}",
            f"{name}() {{\n{script}\n}}; $(echo {name})",
            f"{name}() {{\n{script}\n}}; eval {name}",
            f"{name}() {{\n{script}\n}}; export -f {name}; bash -c {name}",
            f"pwd() {{\n{script}\n}}; pwd",
            f"{name}() {{\n{script}\n}}; for f in {name}; do $f; done",
            f"{name}() {{\n{script}\n}}; trap {name} EXIT",
        ]
    )


def _wrap_in_alias(script: str, random: Random, names: Iterator[str]) -> str:
    name = f"a{next(names)}"
    if "\n" in script:
        return f"{{\n{script}\n}}"
    return f"shopt -s expand_aliases\nalias {name}={_quote_script(script, random)}\n{name}"


def _wrap_in_compound(script: str, random: Random, names: Iterator[str]) -> str:
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


def _wrap_in_chain(script: str, random: Random, names: Iterator[str]) -> str:
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


def _wrap_in_trap(script: str, random: Random, names: Iterator[str]) -> str:
    return f"trap {_quote_script(script, random)} {random.choice(['EXIT', '0', 'exit'])}"


def _wrap_in_read_loop(script: str, random: Random, names: Iterator[str]) -> str:
    name = next(names)
    if "\n" in script:
        return f'{name}={_quote_script(script, random)}\neval "${name}"'
    return random.choice(
        [
            f'while IFS= read -r {name}; do eval "${name}"; done <<< {_quote_script(script, random)}',
            f"printf '%s\\n' {_quote_script(script, random)} | "
            f'while IFS= read {name}; do eval "${name}"; done',
            f'for {name} in {_quote_script(script, random)}; do eval "${name}"; done',
            f'mapfile -t {name} <<< {_quote_script(script, random)}; eval "${{{name}[0]}}"',
        ]
    )


def _wrap_in_xargs(script: str, random: Random, names: Iterator[str]) -> str:
    return random.choice(
        [
            f"echo x | xargs bash -c {_quote_script(script, random)}",
            f"printf '%s\\0' {_quote_script(script, random)} | xargs -0 bash -c",
            f"printf '%s\\0' {_quote_script(script, random)} | xargs -0 -I@@ bash -c @@",
            f"find . -maxdepth 0 -exec bash -c {_quote_script(script, random)} \\;",
            f"find . -maxdepth 0 -exec bash -c {_quote_script(script, random)} _ {{}} +",
        ]
    )


def _add_noise(script: str, random: Random, names: Iterator[str]) -> str:
    return random.choice(
        [
            f"# what follows is harmless\n\n   {script}   # really",
            f"\n\n\t{script}\n\n",
            f"echo \"# not a comment\" '{{' ; {script}",
            f': \'text with ; and $(nothing)\' "and \\" more"; {script}',
        ]
    )


WRAPPERS: dict[str, Callable[[str, Random, Iterator[str]], str]] = {
    "bash -c": _wrap_in_bash_c,
    "eval": _wrap_in_eval,
    "piped into a shell": _pipe_into_shell,
    "here-document": _wrap_in_heredoc,
    "file": _write_and_run_file,
    "function": _wrap_in_function,
    "alias": _wrap_in_alias,
    "compound": _wrap_in_compound,
    "chain": _wrap_in_chain,
    "trap": _wrap_in_trap,
    "lines read": _wrap_in_read_loop,
    "xargs and find": _wrap_in_xargs,
    "noise": _add_noise,
}
