"""Which calls are judged, and by what: what a tool says of itself, its arguments, where it writes."""

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
from tests.conftest import Opened
from toolfold.approval.annotations import effects_of_annotations
from toolfold.approval.call_analysis import CallAnalysis, CallAnalyzer
from toolfold.approval.chain import DecidedBy, DecisionChain
from toolfold.authoring import build_tool
from toolfold.errors import InvalidTool
from toolfold.model import Answer, ApprovalRequest, Json, Meaning, Source, Tool

OWN = "/home/me/.config/toolfold"
PLACES = PathClassifier(
    home="/home/me", cwd="/home/me/project", protected=[OWN, "/home/me/project/toolfold.yaml"]
)


def flagging(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
    """Finds something in whatever it is shown."""
    return verdict_on(command, finding()) if "ls" not in command else verdict_on(command)


def a_tool(*effects: str, server: str = "", **options: Any) -> Tool:
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


def read(tool: Tool, args: Json, **options: Any) -> CallAnalysis:
    return CallAnalyzer(flagging, path_classifier=PLACES, **options).analyze(tool, args)


class TestCommands:
    def test_a_declared_argument_is_judged_as_a_command(self) -> None:
        tool = a_tool(judged_as={"line": Meaning.COMMAND})
        assert read(tool, {"line": "rm a"}).rules == ("delete-folder",)
        assert read(tool, {"line": "ls"}).rules == ()
        assert read(tool, {"other": "rm a"}).rules == ()

    def test_the_words_of_a_command_are_judged_as_one(self) -> None:
        tool = a_tool(judged_as={"argv": "command"})
        assert read(tool, {"argv": ["rm", "a b"]}).command == "rm 'a b'"

    def test_commands_in_the_plural_are_judged_each(self) -> None:
        analysis = read(a_tool("execute"), {"commands": ["ls -l", "rm a"]})
        assert (analysis.command, analysis.rules) == ("ls -l\nrm a", ("delete-folder",))

    def test_a_command_further_down_is_found_where_the_tool_does_not_say_where_to_look(self) -> None:
        args = {"steps": [{"x": 1}, {"run": {"Command": "rm a"}}]}
        assert read(a_tool("execute"), args).command == "rm a"
        assert read(a_tool(server="shady"), args).rules == ("delete-folder",)
        assert read(a_tool("execute", judged_as={"line": "command"}), args).rules == ()
        assert read(a_tool("read", server="ours"), args, trusted_servers=["ours"]).rules == ()

    @pytest.mark.parametrize("value", [{"rm": 1}, 7, [["rm"]], True])
    def test_a_command_that_is_neither_is_asked_about(
        self, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert read(a_tool(judged_as={"line": "command"}), {"line": value}).verdict.unread

    def test_a_command_that_is_too_long_is_asked_about_unread(self) -> None:
        asked: list[str] = []

        def judge(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
            asked.append(command)
            return verdict_on(command)

        analysis = CallAnalyzer(judge).analyze(
            a_tool(judged_as={"line": "command"}), {"line": "ls " * MAX_TEXT_CHARS}
        )
        assert analysis.verdict.unread
        assert analysis.key == ""
        assert asked == []

    def test_several_commands_are_judged_each(self) -> None:
        tool = a_tool(judged_as={"before": "command", "after": "command"})
        analysis = read(tool, {"before": "ls", "after": "rm a"})
        assert (analysis.command, analysis.verdict.part) == ("ls\nrm a", "rm")
        assert analysis.key == ""  # two commands are of no one shape

    def test_the_judge_is_told_the_folder(self) -> None:
        told: list[str | None] = []

        def judge(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
            told.append(cwd)
            return verdict_on(command)

        tool = a_tool(judged_as={"line": "command", "where": "folder"})
        CallAnalyzer(judge).analyze(tool, {"line": "ls", "where": "/srv"})
        assert told == ["/srv"]

    def test_a_tool_that_executes_and_does_not_say_how_is_judged_by_the_usual_names(self) -> None:
        assert read(a_tool("execute"), {"cmd": "rm a"}).rules == ("delete-folder",)
        assert read(a_tool("execute"), {"text": "rm a"}).rules == ()
        assert read(a_tool(), {"cmd": "rm a"}).rules == ()

    def test_text_beside_a_command_belongs_to_what_was_granted_and_numbers_do_not(self) -> None:
        tool = a_tool(judged_as={"line": "command", "why": "note"})
        plain = read(tool, {"line": "rm a"})
        assert plain.allowlist_entry == "rm a"
        assert read(tool, {"line": "rm a", "timeout": 5, "why": "tidy up"}).key == plain.key
        fed = read(tool, {"line": "rm a", "stdin": "yes"})
        assert fed.key != plain.key
        assert fed.allowlist_entry == ""

    def test_no_command_can_pass_for_a_tools_call_in_the_allow_list(self) -> None:
        def judge(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
            return verdict_on(command, finding())

        analyzer = CallAnalyzer(judge)
        tool = a_tool(judged_as={"line": "command"})
        assert analyzer.analyze(tool, {"line": 'tool:wipe {"a": 1}'}).allowlist_entry == ""
        assert analyzer.normalize_entry("tool:wipe {}") == ("tool:wipe {}", None)

    def test_what_else_is_found_in_the_same_words_belongs_to_the_key(self) -> None:
        def judge(command: str, *, cwd: str | None = None, variables: object = None) -> Verdict:
            found = (finding(), finding("spoof")) if "#" in command else (finding(),)
            return verdict_on(command, *found, shape="rm a")

        tool, analyzer = a_tool(judged_as={"line": "command"}), CallAnalyzer(judge)
        plain, odd = (analyzer.analyze(tool, {"line": line}) for line in ("rm a", "rm a #"))
        assert plain.allowlist_entry == odd.allowlist_entry
        assert plain.key != odd.key

    def test_input_that_nobody_has_read_can_be_granted_to_a_session_and_not_for_good(self) -> None:
        analyzer = CallAnalyzer(
            lambda command, *, cwd=None, variables=None: verdict_on(command, finding(), shape="bash < ...")
        )
        analysis = analyzer.analyze(a_tool(judged_as={"line": "command"}), {"line": "x | bash"})
        assert analysis.key
        assert not analysis.allowlist_entry

    def test_a_key_stays_small_however_large_the_call(self) -> None:
        wipe = a_tool("destructive")
        one, other = (read(wipe, {"content": letter * 100_000}) for letter in "ab")
        assert len(one.key) < 5_000
        assert one.key != other.key
        assert not one.allowlist_entry


class TestServers:
    def test_a_servers_word_that_it_only_reads_is_not_believed(self) -> None:
        tool = a_tool("read", server="shady")
        assert read(tool, {"command": "rm a"}).rules == ("delete-folder",)

    def test_unless_the_configuration_trusts_that_server(self) -> None:
        tool = a_tool("read", server="ours")
        assert read(tool, {"command": "rm a"}, trusted_servers=["ours"]).rules == ()
        assert read(tool, {"command": "rm a"}, trusted_servers=["others"]).rules == ("delete-folder",)

    @pytest.mark.parametrize("trusted", [[], ["shady"]])
    def test_its_word_that_it_destroys_is_always_heard(self, trusted: list[str]) -> None:
        tool = a_tool("destructive", server="shady")
        assert read(tool, {}, trusted_servers=trusted).rules == ("destructive:probe",)

    def test_it_cannot_reach_the_runtimes_own_files(self) -> None:
        for args in ({"path": f"{OWN}/config.yaml"}, {"what": [{"x": "~/.config/toolfold/plugins/a.py"}]}):
            assert read(a_tool("read", server="shady"), args).verdict.blocked


@pytest.mark.parametrize(
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
def test_a_servers_annotations_are_taken_at_their_worst(annotations: Json | None, effects: set[str]) -> None:
    assert effects_of_annotations(annotations) == effects


class TestWrites:
    @pytest.mark.parametrize(
        ("path", "rule"),
        [
            ("notes.md", None),
            ("src/app.py", None),
            ("/tmp/x", None),
            (".env", None),
            (f"{OWN}/config.yaml", "own-configuration"),
            (f"{OWN}/not/yet/there.yaml", "own-configuration"),
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
    def test_where_a_file_lies_decides(self, path: str, rule: str | None, declared: bool) -> None:
        tool = a_tool("write", judged_as={"path": "path"} if declared else None)
        found = read(tool, {"path": path, "content": "x"})
        assert (rule in found.rules) if rule else found.rules == ()
        assert found.verdict.blocked is (rule == "own-configuration")

    def test_each_of_several_files_is_looked_at(self) -> None:
        assert "write-startup" in read(a_tool("write"), {"paths": ["a", "b", "~/.bashrc"]}).rules

    def test_a_link_does_not_lead_around_it(self, tmp_path: Path) -> None:
        own, project = tmp_path / "own", tmp_path / "project"
        own.mkdir()
        project.mkdir()
        (project / "innocent").symlink_to(own)
        (project / "later.yaml").symlink_to(own / "not-there-yet.yaml")
        (project / "rc").symlink_to(tmp_path / ".bashrc")
        places = PathClassifier(home=str(tmp_path), cwd=str(project), protected=[str(own)])
        analyzer = CallAnalyzer(flagging, path_classifier=places)
        for path in ("innocent/config.yaml", "later.yaml", str(project / "innocent" / "new" / "x")):
            assert analyzer.analyze(a_tool("write"), {"path": path}).verdict.blocked
        assert "write-startup" in analyzer.analyze(a_tool("write"), {"path": "rc"}).rules

    def test_more_files_than_anyone_looks_through_are_asked_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert read(a_tool("write"), {"paths": ["a"] * 5_000}).verdict.unread

    def test_a_start_up_file_is_asked_about_in_every_mode_and_our_own_is_refused(self) -> None:
        chain = DecisionChain(mode="off")
        startup = read(a_tool("write"), {"path": "~/.bashrc"})
        assert chain.decide(startup, "s") is None
        assert Answer.KIND not in chain.offered_answers(startup)
        own = chain.decide(read(a_tool("write"), {"path": f"{OWN}/config.yaml"}), "s")
        assert own is not None
        assert own.decided_by is DecidedBy.FLOOR

    def test_reading_is_nobodys_business(self) -> None:
        assert read(a_tool("read"), {"path": "~/.bashrc"}).rules == ()


@pytest.mark.parametrize("meaning", [{"a": "nonsense"}, {"a": None}, ["a"], "command"])
def test_a_tool_that_says_something_else_of_its_arguments_cannot_be_built(meaning: Any) -> None:
    with pytest.raises(InvalidTool, match="judged_as"):
        a_tool(judged_as=meaning)


def test_a_misspelt_argument_is_pointed_out_since_it_would_judge_nothing() -> None:
    with pytest.raises(InvalidTool, match=r"'comand', which is not a parameter\. Did you mean command\?"):
        build_tool(
            name="terminal",
            toolset="t",
            schema={"properties": {"command": {"type": "string"}}},
            handler=lambda args: args,
            judged_as={"comand": "command"},
        )


class TestThroughTheRuntime:
    """The real file tools, a real configuration, and whoever answers."""

    def written(
        self, opened: Opened, path: str, answer: Any = False, **settings: Any
    ) -> tuple[str, list[str]]:
        asked: list[str] = []

        def person(request: ApprovalRequest) -> Any:
            asked.append(request.reason)
            return answer

        runtime = opened(settings, approver=person)
        text = runtime.session().call_sync("write_file", {"path": path, "content": "x"}).text
        return str(json.loads(text).get("error", "")), asked

    def test_a_file_of_the_project_is_written_unasked(self, opened: Opened, tmp_path: Path) -> None:
        assert self.written(opened, "a.txt") == ("", [])
        assert (tmp_path / "a.txt").read_text() == "x"

    def test_a_start_up_file_is_written_when_somebody_agrees(self, opened: Opened, tmp_path: Path) -> None:
        error, asked = self.written(opened, ".envrc")
        assert "the request was declined" in error
        assert asked == [".envrc is executed later by another program"]
        assert not (tmp_path / ".envrc").exists()
        assert self.written(opened, ".envrc", True)[0] == ""
        assert (tmp_path / ".envrc").exists()

    @pytest.mark.parametrize("mode", ["manual", "off"])
    def test_its_own_settings_are_written_by_no_tool_whoever_agrees(
        self, opened: Opened, tmp_path: Path, home: Path, mode: str
    ) -> None:
        (tmp_path / "link.yaml").symlink_to(home / "config.yaml")
        for path in ("toolfold.yaml", ".toolfold/plugins/x.py", str(home / "config.yaml"), "link.yaml"):
            error, asked = self.written(opened, path, True, **{"approval.mode": mode})
            assert "always blocked, even with approval" in error
            assert asked == []
        assert not (home / "config.yaml").exists()
        assert not (tmp_path / "toolfold.yaml").exists()


def test_building_approval_loads_nothing_of_what_reads_commands() -> None:
    code = (
        "import sys, toolfold.approval.factory as _\n"
        "print([name for name in sys.modules if name.startswith("
        "('shellverdict.effects', 'shellverdict.embedded_code', 'shellverdict.shell.reader'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
