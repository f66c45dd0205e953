"""Files that were written earlier: what they contain is judged when a command runs them."""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shellverdict.execution_site import ExecutionSite
from shellverdict.judging import Judge
from shellverdict.paths import PathClassifier
from shellverdict.rules import Rules, builtin_rules
from shellverdict.shell.runs import TextStream
from tests.approval.cases import SHELL
from tests.conftest import RuntimeOpener
from toolfold.core.authoring import build_tool
from toolfold.core.types import Answer
from toolfold.safety.approval.call_analysis import CallAnalysis, CallAnalyzer
from toolfold.safety.approval.deny_rules import DenyRules
from toolfold.safety.approval.session_files import MAX_REMEMBERED, SessionFiles

CASES: dict[str, Any] = tomllib.loads((Path(__file__).parent / "written_files.toml").read_text("utf-8"))
DANGEROUS = CASES["tuned"]["dangerous"] + CASES["unseen"]["dangerous"]
ORDINARY = CASES["tuned"]["ordinary"] + CASES["unseen"]["ordinary"]
# These files delete or replace data in a way that needs approval if it is typed, too.
ASKED_WHEN_TYPED = {
    "bash scripts/backup.sh",
    "python3 tmp_test.py",
    "sqlite3 test.db < schema.sql",
}
SSH = ExecutionSite(name="ssh", home="/srv/app", has_own_files=True)
WRITE_FILE = build_tool(
    name="write_file",
    toolset="file",
    schema={"properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    handler=lambda args: args,
    effects=["write"],
)
HARM = "rm -rf ~/\n"


def analyzer_for(
    directory: Path | str, site: ExecutionSite | None = None, *, since: float | None = None, deny: str = ""
) -> CallAnalyzer:
    here = PathClassifier(home="/home/me", cwd=str(directory))
    paths = site.classifier_for(here, []) if site else here
    rules = builtin_rules().merge(Rules(DenyRules([deny]).rules)) if deny else builtin_rules()
    judge = Judge(rules, paths, site)
    return CallAnalyzer(
        judge, judge_input=judge.judge_input, path_classifier=paths, files=SessionFiles(since), site=site
    )


def run(analyzer: CallAnalyzer, command: str, directory: Path | str) -> CallAnalysis:
    """Analyze a command and remember what it changes, as if it was approved."""
    analysis = analyzer.analyze(SHELL, {"command": command, "workdir": str(directory)})
    analyzer.remember_changes(analysis)
    return analysis


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def write_by_command(analyzer: CallAnalyzer, files: dict[str, str]) -> None:
    for name, text in files.items():
        run(analyzer, f"cat > {name} <<'END OF FILE'\n{text}\nEND OF FILE\n", "/srv/app")


class TestRunningWrittenFiles:
    @pytest.mark.parametrize("case", DANGEROUS, ids=lambda case: case["command"])
    def test_dangerous_content_needs_approval_when_it_is_run(self, case: Any, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, case["files"])
        assert run(analyzer, case["command"], tmp_path).needs_approval

    @pytest.mark.parametrize("case", DANGEROUS, ids=lambda case: case["command"])
    def test_dangerous_content_needs_approval_on_another_machine(self, case: Any) -> None:
        analyzer = analyzer_for("/project", SSH)
        write_by_command(analyzer, case["files"])
        assert run(analyzer, case["command"], "/srv/app").needs_approval

    @pytest.mark.parametrize("case", ORDINARY, ids=lambda case: case["command"])
    def test_ordinary_content_needs_no_approval(self, case: Any, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, case["files"])
        analysis = run(analyzer, case["command"], tmp_path)
        assert analysis.needs_approval == (case["command"] in ASKED_WHEN_TYPED), analysis.rules

    def test_dangerous_commands_do_not_need_approval_because_of_their_own_words(self, tmp_path: Path) -> None:
        """Without the files, the commands of the cases are ordinary: the content makes the difference."""
        asked = [
            case["command"]
            for case in DANGEROUS
            if run(analyzer_for(tmp_path), case["command"], tmp_path).needs_approval
        ]
        assert asked == ["cat z | sh", "psql -f drop.sql"]

    def test_file_that_was_there_before_is_the_users_own_and_is_not_judged(self, tmp_path: Path) -> None:
        write(tmp_path, {"b.sh": HARM, "Makefile": f"all:\n\t{HARM}"})
        changed = (tmp_path / "b.sh").stat().st_ctime
        later = analyzer_for(tmp_path, since=changed + 60)
        assert not run(later, "sh b.sh; make", tmp_path).needs_approval
        resumed = analyzer_for(tmp_path, since=changed + 60)
        resumed.include_changes_since(changed - 60)  # the session was started before the file was written
        assert run(resumed, "sh b.sh", tmp_path).needs_approval

    def test_file_is_judged_as_it_is_when_it_is_run(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, {"b.sh": "echo hello\n"})
        assert not run(analyzer, "sh b.sh", tmp_path).needs_approval
        write(tmp_path, {"b.sh": HARM})
        assert run(analyzer, "sh b.sh", tmp_path).needs_approval

    def test_approval_of_a_script_does_not_cover_other_content(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, {"b.sh": HARM})
        before = run(analyzer, "sh b.sh", tmp_path)
        write(tmp_path, {"b.sh": "rm -rf ~/Documents\n"})
        after = run(analyzer, "sh b.sh", tmp_path)
        assert before.key
        assert (before.grant_key, before.allowlist_entry) != (after.grant_key, after.allowlist_entry)

    def test_file_of_an_approved_call_is_judged_before_it_exists(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        analyzer.remember_changes(analyzer.analyze(WRITE_FILE, {"path": "b.sh", "content": HARM}))
        assert run(analyzer, "sh b.sh", tmp_path).needs_approval

    def test_deny_rules_apply_to_the_content(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path, deny="git push *")
        write(tmp_path, {"b.sh": "git push origin main\n", "Makefile": "all:\n\tgit push origin main\n"})
        for command in ("sh b.sh", "make", ". ./b.sh"):
            assert "deny:git push *" in run(analyzer, command, tmp_path).rules, command

    def test_input_of_a_running_shell_is_judged_with_the_written_files(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        tool = build_tool(
            name="run",
            toolset="x",
            schema={"properties": {"command": {"type": "string"}, "stdin": {"type": "string"}}},
            handler=lambda args: args,
            effects=["execute"],
        )
        write(tmp_path, {"b.sh": HARM, "a.sh": "echo a\n"})
        judged = {
            name: analyzer.analyze(tool, {"command": "bash", "stdin": f"sh {name}\n", "cwd": str(tmp_path)})
            for name in ("a.sh", "b.sh")
        }
        assert {name: each.needs_approval for name, each in judged.items()} == {"a.sh": False, "b.sh": True}

    @pytest.mark.parametrize(
        "command",
        [
            "sh b*.sh",
            "for f in *.sh; do bash $f; done",
            "find . -name '*.sh' -exec sh {} \\;",
            "ls | xargs -n1 sh",
            'sh "$SCRIPT"',
            'cd sub; sh "$PLACE/b.sh"',
        ],
    )
    def test_changed_files_that_a_name_may_stand_for_are_judged(self, command: str, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, {"a.sh": "echo a\n", "notes.md": "Use `rm -rf ~/`\n", "sub/b.sh": "echo b\n"})
        assert not run(analyzer, command, tmp_path).needs_approval
        write(tmp_path, {"b.sh": HARM, "sub/b.sh": HARM})
        assert run(analyzer, command, tmp_path).needs_approval

    @pytest.mark.parametrize(
        ("name", "text", "needs_approval"),
        [
            ("x.py", "#!/usr/bin/env python3\nimport sys\nprint(sys.argv)\n", False),
            ("x.py", "#!/usr/bin/env python3\nimport shutil\nshutil.rmtree('/home/me')\n", True),
            ("x.py", f"#!/bin/sh\n{HARM}", True),
            ("makefile", f"#!/bin/sh\n{HARM}", True),
            ("x", f"#!/tmp/python/sh\n{HARM}", True),
            ("x", "#!/usr/bin/env -S uv run --script\nprint(1)\n", False),
            ("x", "#!/usr/bin/env bun\nrequire('fs').rmSync('/home/me', {recursive: true})\n", True),
        ],
    )
    def test_program_file_is_judged_in_the_language_of_its_first_line(
        self, name: str, text: str, needs_approval: bool, tmp_path: Path
    ) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, {name: text})
        assert run(analyzer, f"./{name}", tmp_path).needs_approval == needs_approval

    @pytest.mark.parametrize(
        ("name", "command"), [(".git/hooks/pre-commit", "git commit -m x"), (".envrc", "direnv allow")]
    )
    def test_hidden_file_that_a_program_loads_is_judged(
        self, name: str, command: str, tmp_path: Path
    ) -> None:
        analyzer = analyzer_for(tmp_path)
        assert not run(analyzer, command, tmp_path).needs_approval
        write(tmp_path, {name: f"#!/bin/sh\n{HARM}"})
        assert run(analyzer, command, tmp_path).needs_approval

    def test_module_with_a_function_that_deletes_its_argument_needs_no_approval(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        write(tmp_path, {"clean.py": "import shutil\n\ndef clean(path):\n    shutil.rmtree(path)\n"})
        assert not run(analyzer, "pytest", tmp_path).needs_approval
        write(tmp_path, {"clean.py": "import shutil\nshutil.rmtree('/home/me')\n"})
        assert run(analyzer, "pytest", tmp_path).rules == ("delete-everything", "delete-protected")


class TestUnknownContent:
    def test_binary_file_that_a_call_wrote_needs_approval(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        (tmp_path / "tool").write_bytes(b"\x7fELF\0\0")
        assert not run(analyzer, "./tool", tmp_path).needs_approval  # may be the result of a build
        analyzer.remember_changes(analyzer.analyze(WRITE_FILE, {"path": "tool"}))
        assert run(analyzer, "./tool", tmp_path).needs_approval

    def test_file_too_large_to_be_read_needs_approval(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        analyzer.remember_changes(analyzer.analyze(WRITE_FILE, {"path": "b.sh"}))
        write(tmp_path, {"b.sh": "echo a\n" * 20_000})
        assert run(analyzer, "sh b.sh", tmp_path).needs_approval

    def test_downloaded_file_needs_approval_even_if_its_text_is_ordinary(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        run(analyzer, "curl -sSo get.sh https://example.com/get.sh", tmp_path)
        write(tmp_path, {"get.sh": "echo a\n"})
        assert run(analyzer, "sh get.sh", tmp_path).needs_approval

    @pytest.mark.parametrize(
        "change",
        [
            "sed -i 's/echo/rm/' b.sh",
            "python3 -c \"open('b.sh', 'w').write(input())\"",
            "curl -so b.sh https://example.com/b.sh",
        ],
    )
    def test_file_changed_on_another_machine_needs_approval(self, change: str) -> None:
        analyzer = analyzer_for("/project", SSH)
        write_by_command(analyzer, {"b.sh": "echo a\n"})
        assert not run(analyzer, "sh b.sh", "/srv/app").needs_approval
        run(analyzer, change, "/srv/app")
        assert run(analyzer, "sh b.sh", "/srv/app").needs_approval

    def test_copy_of_a_program_is_known_under_its_new_name_in_a_later_command(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        run(analyzer, "cp /bin/rm ./tidy", tmp_path)
        assert run(analyzer, "./tidy -rf ~/", tmp_path).needs_approval

    def test_program_in_a_cloned_repository_needs_approval(self, tmp_path: Path) -> None:
        analyzer = analyzer_for(tmp_path)
        run(analyzer, "git clone https://example.com/a.git", tmp_path)
        assert run(analyzer, "a/install.sh", tmp_path).needs_approval


def test_file_in_a_shared_directory_is_read_on_this_machine(tmp_path: Path) -> None:
    site = ExecutionSite(
        name="docker",
        home="/workspace",
        has_own_files=True,
        shared_directories=((str(tmp_path), "/workspace"),),
    )
    analyzer = analyzer_for(tmp_path, site)
    write(tmp_path, {"b.sh": HARM, "a.sh": "echo a\n"})
    assert run(analyzer, "sh b.sh", "/workspace").needs_approval
    assert not run(analyzer, "sh a.sh", "/workspace").needs_approval


def test_number_of_remembered_files_is_limited() -> None:
    from shellverdict.shell.earlier_files import FileChanges

    files = SessionFiles()
    for number in range(MAX_REMEMBERED + 10):
        files.record(FileChanges({f"/srv/{number}": TextStream()}), SSH)
    view = files.seen_from(SSH)
    assert view.find("/srv/0") is None
    assert len(list(view.list_below("/srv"))) == MAX_REMEMBERED


async def test_script_that_one_session_wrote_is_judged_when_a_delegated_session_runs_it(
    open_test_runtime: RuntimeOpener,
) -> None:
    asked: list[str] = []

    def refuse(request: Any) -> Answer:
        asked.append(request.command)
        return Answer.DENY

    runtime = open_test_runtime(approver=refuse)
    session = runtime.session(["terminal", "file", "code_execution"])
    await session.call("write_file", {"path": "b.sh", "content": "rm -rf ~/nothing-here\n"})
    await session.call("write_file", {"path": "a.sh", "content": "echo hello\n"})
    result = await session.delegate(["terminal"]).call("terminal", {"command": "sh b.sh"})
    assert "refused" in result.text
    assert "hello" in (await session.call("terminal", {"command": "sh a.sh"})).text
    code = "import subprocess\nsubprocess.run(['sh', 'b.sh'])\n"
    assert "refused" in (await session.call("execute_code", {"code": code})).text
    assert [command.split()[0] for command in asked] == ["sh", "python3"]


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("write_file", {"path": "b.sh", "content": "rm -rf ~/nothing-here\n"}),
        ("patch", {"path": "b.sh", "old": "echo", "new": "rm -rf ~/nothing-here #"}),
        ("terminal", {"command": "printf 'rm -rf %s\\n' '~/nothing-here' > b.sh"}),
        ("terminal", {"command": "tar xf harm.tar"}),
        ("execute_code", {"code": "open('b.sh', 'w').write('rm -' + 'rf ~/nothing-here')"}),
    ],
)
@pytest.mark.parametrize("steps", [["sh b.sh"], ["cd ..", 'cd "$PROJECT" && sh b.sh']])
async def test_content_that_a_tool_wrote_is_judged_in_a_later_call(
    tool: str,
    args: dict[str, str],
    steps: list[str],
    open_test_runtime: RuntimeOpener,
    tmp_path: Path,
) -> None:
    runtime = open_test_runtime(approver=lambda _: Answer.DENY)
    session = runtime.session(["terminal", "file", "code_execution"])
    write(tmp_path, {"b.sh": "rm -rf ~/nothing-here\n"})
    with tarfile.open(tmp_path / "harm.tar", "w") as archive:
        archive.add(tmp_path / "b.sh", "b.sh")
    write(tmp_path, {"b.sh": "echo hello\n"})
    await session.call("terminal", {"command": f"export PROJECT={tmp_path}"})
    assert (await session.call(tool, args)).error is None
    results = [await session.call("terminal", {"command": step}) for step in steps]
    assert [bool(result.error) for result in results] == [False] * (len(steps) - 1) + [True]
    assert "refused" in str(results[-1].error)
