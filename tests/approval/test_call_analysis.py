"""Analysis of calls: declared effects, commands in arguments, written paths."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shellverdict.paths import PathClassifier
from shellverdict.shell.words import MAX_TEXT_CHARS
from shellverdict.verdict import Verdict
from tests.approval.cases import finding, verdict_on
from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from toolfold.core.authoring import build_tool
from toolfold.core.errors import InvalidTool
from toolfold.core.types import Answer, ApprovalRequest, Json, Meaning, Source, Tool
from toolfold.safety.approval.annotations import effects_of_annotations
from toolfold.safety.approval.call_analysis import CallAnalysis, CallAnalyzer
from toolfold.safety.approval.chain import DecidedBy, DecisionChain

RUNTIME_DIRECTORY = "/home/me/.config/toolfold"
CLASSIFIER = PathClassifier(
    home="/home/me", cwd="/home/me/project", protected=[RUNTIME_DIRECTORY, "/home/me/project/toolfold.yaml"]
)


def flag_everything(
    command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
) -> Verdict:
    """Command analysis that flags every command except those with "ls"."""
    return verdict_on(command, finding()) if "ls" not in command else verdict_on(command)


def make_tool(*effects: str, server: str = "", **options: Any) -> Tool:
    source = Source("mcp", server) if server else Source()
    toolset = f"mcp-{server}" if server else "t"
    return build_tool(
        name="probe",
        toolset=toolset,
        schema={},
        handler=lambda args: args,
        effects=effects,
        source=source,
        **options,
    )


def analyze(tool: Tool, args: Json, **options: Any) -> CallAnalysis:
    return CallAnalyzer(flag_everything, path_classifier=CLASSIFIER, **options).analyze(tool, args)


class TestCommands:
    def test_only_the_argument_declared_as_a_command_is_checked_for_dangerous_commands(self) -> None:
        tool = make_tool(judged_as={"line": Meaning.COMMAND})
        assert analyze(tool, {"line": "rm a"}).rules == ("delete-folder",)
        assert analyze(tool, {"line": "ls"}).rules == ()
        assert analyze(tool, {"other": "rm a"}).rules == ()

    def test_list_of_words_in_a_command_argument_is_joined_and_checked_as_one_command(self) -> None:
        tool = make_tool(judged_as={"argv": "command"})
        assert analyze(tool, {"argv": ["rm", "a b"]}).command == "rm 'a b'"

    def test_list_in_an_argument_named_commands_is_checked_as_several_commands(self) -> None:
        analysis = analyze(make_tool("execute"), {"commands": ["ls -l", "rm a"]})
        assert (analysis.command, analysis.rules) == ("ls -l\nrm a", ("delete-folder",))

    def test_command_in_a_nested_argument_is_checked_if_the_tool_declares_no_command_argument(self) -> None:
        args = {"steps": [{"x": 1}, {"run": {"Command": "rm a"}}]}
        assert analyze(make_tool("execute"), args).command == "rm a"
        assert analyze(make_tool(server="shady"), args).rules == ("delete-folder",)
        assert analyze(make_tool("execute", judged_as={"line": "command"}), args).rules == ()
        assert analyze(make_tool("read", server="ours"), args, trusted_servers=["ours"]).rules == ()

    @pytest.mark.parametrize("value", [{"rm": 1}, 7, [["rm"]], True])
    def test_command_argument_that_is_neither_text_nor_a_list_of_words_is_marked_as_not_analyzed(
        self, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert analyze(make_tool(judged_as={"line": "command"}), {"line": value}).verdict.unread

    def test_command_argument_over_the_length_limit_is_marked_as_not_analyzed(self) -> None:
        asked: list[str] = []

        def judge(
            command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
        ) -> Verdict:
            asked.append(command)
            return verdict_on(command)

        analysis = CallAnalyzer(judge).analyze(
            make_tool(judged_as={"line": "command"}), {"line": "ls " * MAX_TEXT_CHARS}
        )
        assert analysis.verdict.unread
        assert analysis.key == ""
        assert asked == []

    def test_each_of_several_command_arguments_is_checked_as_a_separate_command(self) -> None:
        tool = make_tool(judged_as={"before": "command", "after": "command"})
        analysis = analyze(tool, {"before": "ls", "after": "rm a"})
        assert (analysis.command, analysis.verdict.part) == ("ls\nrm a", "rm")
        assert analysis.key == ""  # several commands have no common shape

    def test_command_argument_is_analyzed_with_the_working_directory_given_in_another_argument(
        self,
    ) -> None:
        directories: list[str | None] = []

        def judge(
            command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
        ) -> Verdict:
            directories.append(cwd)
            return verdict_on(command)

        tool = make_tool(judged_as={"line": "command", "where": "folder"})
        CallAnalyzer(judge).analyze(tool, {"line": "ls", "where": "/srv"})
        assert directories == ["/srv"]

    def test_argument_named_cmd_is_checked_as_a_command_in_tools_with_the_execute_effect(self) -> None:
        assert analyze(make_tool("execute"), {"cmd": "rm a"}).rules == ("delete-folder",)
        assert analyze(make_tool("execute"), {"text": "rm a"}).rules == ()
        assert analyze(make_tool(), {"cmd": "rm a"}).rules == ()

    def test_session_approval_of_a_command_applies_with_another_timeout_but_not_with_other_stdin(
        self,
    ) -> None:
        tool = make_tool(judged_as={"line": "command", "why": "note"})
        plain = analyze(tool, {"line": "rm a"})
        assert plain.allowlist_entry == "rm a"
        assert analyze(tool, {"line": "rm a", "timeout": 5, "why": "tidy up"}).key == plain.key
        with_stdin = analyze(tool, {"line": "rm a", "stdin": "yes"})
        assert with_stdin.key != plain.key
        assert with_stdin.allowlist_entry == ""

    def test_command_that_starts_with_tool_colon_cannot_become_an_allowlist_entry(self) -> None:
        def judge(
            command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
        ) -> Verdict:
            return verdict_on(command, finding())

        analyzer = CallAnalyzer(judge)
        tool = make_tool(judged_as={"line": "command"})
        assert analyzer.analyze(tool, {"line": 'tool:wipe {"a": 1}'}).allowlist_entry == ""
        assert analyzer.normalize_entry("tool:wipe {}") == ("tool:wipe {}", None)

    def test_session_approval_of_a_command_does_not_allow_a_respelling_that_matches_more_rules(self) -> None:
        def judge(
            command: str, *, cwd: str | None = None, variables: object = None, earlier_files: object = None
        ) -> Verdict:
            found = (finding(), finding("spoof")) if "#" in command else (finding(),)
            return verdict_on(command, *found, shape="rm a")

        tool, analyzer = make_tool(judged_as={"line": "command"}), CallAnalyzer(judge)
        plain, odd = (analyzer.analyze(tool, {"line": line}) for line in ("rm a", "rm a #"))
        assert plain.allowlist_entry == odd.allowlist_entry
        assert plain.key != odd.key

    def test_command_that_runs_unknown_code_can_be_approved_for_a_session_but_not_allowlisted(
        self,
    ) -> None:
        analyzer = CallAnalyzer(
            lambda command, *, cwd=None, variables=None, earlier_files=None: verdict_on(
                command, finding(), shape="bash < ..."
            )
        )
        analysis = analyzer.analyze(make_tool(judged_as={"line": "command"}), {"line": "x | bash"})
        assert analysis.key
        assert not analysis.allowlist_entry

    def test_session_approval_of_a_call_with_large_arguments_is_stored_under_a_short_distinct_key(
        self,
    ) -> None:
        wipe = make_tool("destructive")
        one, other = (analyze(wipe, {"content": letter * 100_000}) for letter in "ab")
        assert len(one.key) < 5_000
        assert one.key != other.key
        assert not one.allowlist_entry


class TestServers:
    def test_command_arguments_are_checked_even_if_an_untrusted_mcp_server_declares_the_tool_read_only(
        self,
    ) -> None:
        tool = make_tool("read", server="shady")
        assert analyze(tool, {"command": "rm a"}).rules == ("delete-folder",)

    def test_command_arguments_of_a_tool_that_a_trusted_mcp_server_declares_read_only_are_not_checked(
        self,
    ) -> None:
        tool = make_tool("read", server="ours")
        assert analyze(tool, {"command": "rm a"}, trusted_servers=["ours"]).rules == ()
        assert analyze(tool, {"command": "rm a"}, trusted_servers=["others"]).rules == ("delete-folder",)

    @check_cases("trusted", [[], ["shady"]])
    def test_tool_declared_destructive_is_flagged_even_if_its_mcp_server_is_not_trusted(
        self, trusted: list[str]
    ) -> None:
        tool = make_tool("destructive", server="shady")
        assert analyze(tool, {}, trusted_servers=trusted).rules == ("destructive:probe",)

    def test_call_of_an_mcp_tool_with_a_path_in_the_directories_of_toolfold_is_blocked(self) -> None:
        for args in (
            {"path": f"{RUNTIME_DIRECTORY}/config.yaml"},
            {"what": [{"x": "~/.config/toolfold/plugins/a.py"}]},
        ):
            assert analyze(make_tool("read", server="shady"), args).verdict.blocked


@check_cases(
    ("annotations", "effects"),
    [
        (None, set()),
        ({}, set()),
        ({"title": "Wipe"}, set()),
        ({"readOnlyHint": True}, {"read"}),
        ({"readOnlyHint": True, "openWorldHint": True}, {"read", "network"}),
        ({"readOnlyHint": False}, {"write", "destructive"}),
        ({"destructiveHint": True}, {"write", "destructive"}),
        ({"destructiveHint": False}, {"write"}),
        ({"readOnlyHint": False, "destructiveHint": False}, {"write"}),
        ({"readOnlyHint": True, "destructiveHint": True}, {"write", "destructive"}),
        ({"readOnlyHint": "yes", "destructiveHint": 0}, set()),
    ],
)
def test_read_write_network_and_destructive_effects_of_a_tool_follow_from_mcp_annotations(
    annotations: Json | None, effects: set[str]
) -> None:
    assert effects_of_annotations(annotations) == effects


class TestWrittenPaths:
    @pytest.mark.parametrize(
        ("path", "rule"),
        [
            ("notes.md", None),
            ("src/app.py", None),
            ("/tmp/x", None),
            (".env", None),
            (f"{RUNTIME_DIRECTORY}/config.yaml", "own-configuration"),
            (f"{RUNTIME_DIRECTORY}/not/yet/there.yaml", "own-configuration"),
            ("toolfold.yaml", "own-configuration"),
            ("./src/../toolfold.yaml", "own-configuration"),
            ("~/.bashrc", "write-startup"),
            ("/home/me/.zshrc", "write-startup"),
            ("../.profile", "write-startup"),
            (".git/hooks/pre-commit", "write-startup"),
            ("~/.ssh/authorized_keys", "write-startup"),
            ("/etc/hosts", "write-system"),
            ("/dev/sda", "write-system"),
            ("~/.ssh/id_ed25519", "write-secret"),
            (".claude/settings.json", "write-protected"),
        ],
    )
    @pytest.mark.parametrize("declared", [True, False])
    def test_writing_protected_or_startup_files_is_flagged_but_writing_ordinary_files_is_not(
        self, path: str, rule: str | None, declared: bool
    ) -> None:
        tool = make_tool("write", judged_as={"path": "path"} if declared else None)
        found = analyze(tool, {"path": path, "content": "x"})
        assert (rule in found.rules) if rule else found.rules == ()
        assert found.verdict.blocked is (rule == "own-configuration")

    def test_write_call_with_a_startup_file_at_the_end_of_a_list_of_paths_is_flagged(self) -> None:
        assert "write-startup" in analyze(make_tool("write"), {"paths": ["a", "b", "~/.bashrc"]}).rules

    def test_writing_through_a_symbolic_link_to_a_protected_file_is_blocked(self, tmp_path: Path) -> None:
        own, project = tmp_path / "own", tmp_path / "project"
        own.mkdir()
        project.mkdir()
        (project / "innocent").symlink_to(own)
        (project / "later.yaml").symlink_to(own / "not-there-yet.yaml")
        (project / "rc").symlink_to(tmp_path / ".bashrc")
        classifier = PathClassifier(home=str(tmp_path), cwd=str(project), protected=[str(own)])
        analyzer = CallAnalyzer(flag_everything, path_classifier=classifier)
        for path in ("innocent/config.yaml", "later.yaml", str(project / "innocent" / "new" / "x")):
            assert analyzer.analyze(make_tool("write"), {"path": path}).verdict.blocked
        assert "write-startup" in analyzer.analyze(make_tool("write"), {"path": "rc"}).rules

    def test_call_that_writes_too_many_paths_is_marked_as_not_analyzed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert analyze(make_tool("write"), {"paths": ["a"] * 5_000}).verdict.unread

    def test_writing_a_startup_file_always_needs_approval_and_writing_a_toolfold_file_is_blocked(
        self,
    ) -> None:
        chain = DecisionChain(mode="off")
        startup = analyze(make_tool("write"), {"path": "~/.bashrc"})
        assert chain.decide(startup, "s") is None
        assert Answer.KIND not in chain.offered_answers(startup)
        own = chain.decide(analyze(make_tool("write"), {"path": f"{RUNTIME_DIRECTORY}/config.yaml"}), "s")
        assert own is not None
        assert own.decided_by is DecidedBy.BLOCKED

    def test_call_that_reads_a_startup_file_is_not_flagged(self) -> None:
        assert analyze(make_tool("read"), {"path": "~/.bashrc"}).rules == ()


@check_cases("meaning", [{"a": "nonsense"}, {"a": None}, ["a"], "command"])
def test_tool_definition_with_an_invalid_value_of_the_attribute_judged_as_is_rejected(
    meaning: Any,
) -> None:
    with pytest.raises(InvalidTool, match="judged_as"):
        make_tool(judged_as=meaning)


def test_tool_definition_whose_attribute_judged_as_names_a_missing_parameter_is_rejected() -> None:
    with pytest.raises(InvalidTool, match=r"'comand', which is not a parameter\. Did you mean command\?"):
        build_tool(
            name="terminal",
            toolset="t",
            schema={"properties": {"command": {"type": "string"}}},
            handler=lambda args: args,
            judged_as={"comand": "command"},
        )


class TestRuntime:
    """Real file tools, a real configuration, and an approver."""

    def write_file(
        self, opened: RuntimeOpener, path: str, answer: Any = False, **settings: Any
    ) -> tuple[str, list[str]]:
        asked: list[str] = []

        def person(request: ApprovalRequest) -> Any:
            asked.append(request.reason)
            return answer

        runtime = opened(settings, approver=person)
        text = runtime.session().call_sync("write_file", {"path": path, "content": "x"}).text
        return str(json.loads(text).get("error", "")), asked

    def test_file_in_the_project_is_written_without_approval(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path
    ) -> None:
        assert self.write_file(open_test_runtime, "a.txt") == ("", [])
        assert (tmp_path / "a.txt").read_text() == "x"

    def test_writing_a_shell_startup_file_needs_approval_and_then_succeeds(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path
    ) -> None:
        error, asked = self.write_file(open_test_runtime, ".envrc")
        assert "the request was declined" in error
        assert asked == [".envrc is executed later by another program"]
        assert not (tmp_path / ".envrc").exists()
        assert self.write_file(open_test_runtime, ".envrc", True)[0] == ""
        assert (tmp_path / ".envrc").exists()

    @pytest.mark.parametrize("mode", ["manual", "off"])
    def test_toolfold_settings_cannot_be_written_even_with_approval(
        self, open_test_runtime: RuntimeOpener, tmp_path: Path, home: Path, mode: str
    ) -> None:
        (tmp_path / "link.yaml").symlink_to(home / "config.yaml")
        for path in ("toolfold.yaml", ".toolfold/plugins/x.py", str(home / "config.yaml"), "link.yaml"):
            error, asked = self.write_file(open_test_runtime, path, True, **{"approval.mode": mode})
            assert "always blocked, even with approval" in error
            assert asked == []
        assert not (home / "config.yaml").exists()
        assert not (tmp_path / "toolfold.yaml").exists()


def test_importing_the_approval_factory_does_not_import_the_slow_command_analysis_modules() -> None:
    code = (
        "import sys, toolfold.safety.approval.approval_factory as _\n"
        "print([name for name in sys.modules if name.startswith("
        "('shellverdict.effects', 'shellverdict.embedded_code', 'shellverdict.shell.reader'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
