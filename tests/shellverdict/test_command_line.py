"""`python -m shellverdict`: verdicts as text and JSON, rule files, standard input, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shellverdict.__main__ import main

RULE = """
[[rule]]
name = "{name}"
category = "publish"
severity = "low"
description = "deploys something"
programs = ["{name}"]
"""
BLOCKED_ROOT = """\
blocked: must not run

  critical: deletes the whole file system, a whole home directory or an essential system directory (/)
    part: rm -rf /
    rule: delete-everything (fs-delete)
"""


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in this process, because loading the rules takes longer than a verdict."""
    output, errors = io.BytesIO(), io.BytesIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(io.TextIOWrapper(output, "utf-8", write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(errors, "utf-8", write_through=True)),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        written = output.getvalue(), errors.getvalue()
    return subprocess.CompletedProcess(arguments, code, *written)


def run_process(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "shellverdict", *arguments],
        input=stdin,
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
    )


def test_command_line_exits_with_0_for_a_harmless_command() -> None:
    done = run_process("ls -la")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"nothing found\n", b"")


def test_command_line_prints_no_traceback_if_the_output_pipe_is_closed() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shellverdict", "ls"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_command_line_exits_with_1_for_a_dangerous_command_and_shows_each_finding() -> None:
    done = run("ls && git push --force; git clean -fdx")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 1
    assert lines[0] == "dangerous: needs approval"
    assert "    part: git push --force" in lines
    assert "    part: git clean -fdx" in lines
    assert any(line.startswith("  high: ") for line in lines)


def test_command_line_exits_with_2_for_a_blocked_command_and_shows_the_worst_finding_first() -> None:
    done = run("rm -rf /")
    assert done.returncode == 2
    assert done.stdout.decode().startswith(BLOCKED_ROOT)
    assert done.stderr == b""


def test_json_output_has_every_finding_with_its_position_in_the_command() -> None:
    command = "ls; rm -rf /"
    done = run("--json", command)
    shown = json.loads(done.stdout)
    assert done.returncode == 2
    assert (shown["dangerous"], shown["blocked"], shown["unread"]) == (True, True, False)
    worst = shown["findings"][0]
    assert (worst["rule"], worst["severity"], worst["blocked"]) == ("delete-everything", "critical", True)
    assert worst["part"] == command[slice(*worst["span"])] == "rm -rf /"
    assert json.loads(run("--json", "ls").stdout)["findings"] == []


def test_dash_argument_reads_the_command_from_standard_input() -> None:
    assert run("-", stdin=b"for d in / ; do\n  rm -rf $d\ndone\n").returncode == 2
    assert run("-", stdin=b"").returncode == 0


def test_command_on_standard_input_over_the_size_limit_is_reported_as_dangerous_and_not_analyzed() -> None:
    done = run("--json", "-", stdin=b"true;" * 400_000)
    assert done.returncode == 1
    assert json.loads(done.stdout)["unread"]


def test_command_with_invalid_utf8_is_flagged() -> None:
    assert run("-", stdin=b"ls \xff\xfe").returncode == 1


def test_rules_of_every_file_given_with_the_rules_option_are_applied(tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for file in files:
        file.write_text(RULE.format(name=file.stem))
    options = [word for file in files for word in ("--rules", str(file))]
    assert run(*options, "one x; two x").stdout.count(b"deploys something") == 2
    assert run("one x; two x").returncode == 0


def test_command_line_exits_with_2_and_an_error_if_a_rule_file_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(RULE.format(name="one").replace("severity", "sverity"))
    done = run("--rules", "bad.toml", "ls", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        "error: bad.toml: rule 'one': `sverity` is not a valid key\n  did you mean severity?\n"
    )


@pytest.mark.thorough
def test_error_for_a_rule_name_used_in_two_files_names_the_second_file(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(RULE.format(name="one"))
    done = run("--rules", "a.toml", "--rules", "b.toml", "ls", cwd=tmp_path)
    assert done.returncode == 2
    assert b"error: b.toml: two rules have the name 'one'" in done.stderr


def test_cwd_option_sets_the_directory_for_resolving_relative_paths(tmp_path: Path) -> None:
    assert run("--cwd", "/home/someone", "rm -rf ../..").returncode == 2
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert (
        run_process("--cwd", str(tmp_path / "a" / "b"), "rm -rf ../..", HOME="/home/someone").returncode == 1
    )


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("arguments", [(), ("rm", "-rf", "/"), ("--jsn", "ls"), ("--rules",)])
def test_command_line_with_invalid_options_exits_with_2_and_an_explanation(
    arguments: tuple[str, ...],
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage: python -m shellverdict" in done.stderr


def test_error_for_an_unquoted_command_says_that_the_command_must_be_quoted() -> None:
    assert b"put the whole command into quotes" in run("rm", "-rf", "/").stderr


def test_control_characters_are_escaped_in_the_output() -> None:
    done = run("rm -rf /etc/\x1b[2Jx; echo '\nnothing found\n'; rm -rf /")
    assert b"\x1b" not in done.stdout
    assert b"\nnothing found" not in done.stdout
    assert b"\\x1b" in done.stdout


def test_character_that_the_terminal_cannot_encode_is_escaped_in_the_output() -> None:
    done = run_process("rm -rf /é", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert b"part: rm -rf /\\xe9" in done.stdout


def test_output_lists_at_most_20_findings_and_the_number_of_remaining_findings() -> None:
    command = ";".join(f"rm -rf /srv/{number}" for number in range(30))
    assert run(command).stdout.decode().splitlines()[-1] == "  and 10 more; --json lists all"
    assert len(json.loads(run("--json", command).stdout)["findings"]) == 30
