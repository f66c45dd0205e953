"""Command-line interface: `python -m shellverdict "rm -rf build"` judges a command."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NoReturn

from shellverdict.errors import RuleError
from shellverdict.judging import judge
from shellverdict.rules import Rules, load_rules
from shellverdict.verdict import Finding, Verdict

__all__ = ["main"]

NOTHING_FOUND, DANGEROUS, BLOCKED, USAGE_ERROR = 0, 1, 2, 2
MAX_STDIN_BYTES: Final = 1_000_000  # longer than any command that is analysed
MAX_SHOWN_FINDINGS: Final = 20
MAX_SHOWN_CHARS: Final = 400
DESCRIPTION: Final = """\
Tell what a shell command would do, before it runs. Nothing is executed.

Exit codes:
  0  nothing was found
  1  dangerous: somebody should agree before the command runs
  2  blocked: the command must not run, whoever agrees; also an error in the
     arguments or in a rule file, which is reported on standard error
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the command in the arguments, print the verdict and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not every terminal can show every character
            stream.reconfigure(errors="backslashreplace")
    options = _make_parser().parse_args(arguments)
    try:
        rules = _load_all_rules(options.rules)
    except RuleError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {_make_printable(f'{error.file}: {error.problem}')}{hint}\n")
        return USAGE_ERROR
    verdict = judge(_read_command(options.command), cwd=options.cwd, rules=rules)
    lines = [json.dumps(_to_json(verdict), indent=2)] if options.json else _format_verdict(verdict)
    _print_lines(lines)
    return BLOCKED if verdict.blocked else DANGEROUS if verdict.dangerous else NOTHING_FOUND


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines; stop without an error if the reader, such as `head`, closes the pipe early."""
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # Python flushes once more when it exits


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "\n  put the whole command into quotes" if message.startswith("unrecognized") else ""
        super().error(message + hint)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m shellverdict",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", metavar="COMMAND", help="shell command in quotes; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        help="add the rules of a TOML file; can be given several times",
    )
    parser.add_argument(
        "--cwd",
        metavar="DIR",
        help="directory in which the command would run; default: the current directory",
    )
    return parser


def _load_all_rules(files: Sequence[str]) -> Rules | None:
    rules = None
    for file in dict.fromkeys(files):
        added = load_rules(file)
        try:
            rules = added if rules is None else rules.merge(added)
        except RuleError as error:
            raise error.with_file(file) from None
    return rules


def _read_command(argument: str) -> str:
    if argument != "-":
        return argument
    return sys.stdin.buffer.read(MAX_STDIN_BYTES).decode("utf-8", errors="surrogateescape")


def _format_verdict(verdict: Verdict) -> Iterator[str]:
    if not verdict.dangerous:
        yield "nothing found"
        return
    yield "blocked: must not run" if verdict.blocked else "dangerous: needs approval"
    findings = _sort_findings(verdict)
    for finding in findings[:MAX_SHOWN_FINDINGS]:
        yield ""
        yield f"  {finding.severity.name.lower()}: {_make_printable(finding.reason)}"
        yield f"    part: {_make_printable(_part_of(verdict, finding))}"
        yield f"    rule: {_make_printable(finding.rule)} ({_make_printable(finding.category)})"
    if len(findings) > MAX_SHOWN_FINDINGS:
        yield ""
        yield f"  and {len(findings) - MAX_SHOWN_FINDINGS} more; --json lists all"


def _to_json(verdict: Verdict) -> dict[str, object]:
    return {
        "dangerous": verdict.dangerous,
        "blocked": verdict.blocked,
        "unread": verdict.unread,
        "findings": [
            {
                "rule": finding.rule,
                "category": finding.category,
                "severity": finding.severity.name.lower(),
                "blocked": finding.blocked,
                "reason": finding.reason,
                "part": _part_of(verdict, finding),
                "span": list(finding.span),
            }
            for finding in _sort_findings(verdict)
        ],
    }


def _sort_findings(verdict: Verdict) -> list[Finding]:
    """Return the findings of a verdict, the most severe first."""
    return sorted(verdict.findings, key=lambda each: (not each.blocked, -each.severity))


def _part_of(verdict: Verdict, finding: Finding) -> str:
    return verdict.command[slice(*finding.span)]


def _make_printable(text: str) -> str:
    r"""Shorten text for a terminal and escape characters that would change how it is displayed.

    Line breaks are shown as `\n`, so that a command cannot imitate other lines of the output.
    """
    shortened = text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shortened)


if __name__ == "__main__":
    sys.exit(main())
