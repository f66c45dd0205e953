"""Tools whose declared effects the user allows, tested on whole calls of a real MCP server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold import Answer, ApprovalRequest, load_config
from toolfold.config import set_value
from toolfold.config.allowed_tool_entries import AllowedTool
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError
from toolfold.core.types import Caller
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.safety.approval.allowed_tools import KEY, build_allowed_tools
from toolfold.safety.approval.approval_factory import build_audit

NOTES = str(Path(__file__).parents[1] / "clients" / "notes_server.py")
DELETE = "mcp_notes_delete_note"
REFUSAL = (
    f"'{DELETE}' was not run: {DELETE} declares that it can destroy data,"
    " and nobody could be asked for approval."
    f" Only the user can allow it, in a terminal: toolfold approvals allow {DELETE}."
    " Do not retry it unless the user asks you to."
)
NAMES = st.text(st.characters(categories=("L", "N"), include_characters="_-."), min_size=1, max_size=40)
PATHS = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=40)

OpenNotes = Callable[..., Runtime]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def open_notes(tmp_path: Path, project: Path) -> Iterator[OpenNotes]:
    """Open a runtime with the notes server and the given allowed tools in the user's own settings."""
    opened: list[Runtime] = []

    def open_with_entries(*entries: str, approver: Any = None, **overrides: Any) -> Runtime:
        file = tmp_path / "home" / "config.yaml"
        server = {"command": sys.executable, "args": [NOTES, str(tmp_path / "record")]}
        set_value(file, "mcp.servers.notes", server)
        if entries:
            set_value(file, KEY, list(entries))
        env = {"TOOLFOLD_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
        config = load_config(overrides={"mcp.wait_seconds": 60.0, **overrides}, env=env)
        runtime = open_runtime(config, approver=approver)
        opened.append(runtime)
        return runtime

    yield open_with_entries
    for runtime in opened:
        runtime.close()


def delete(runtime: Runtime, text: str = "draft", *, client: str = "") -> str | None:
    """Call the destructive tool in a new session; return the error."""
    session = runtime.session(caller=Caller(client))
    return session.call_sync(DELETE, {"text": text}).error


class TestEntries:
    @given(
        target=st.sampled_from(["tool", "server"]),
        name=NAMES,
        client=NAMES | st.just(""),
        project=PATHS.map(lambda path: f"/{path}".rstrip()) | st.just(""),
    )
    def test_allowed_tool_setting_formatted_as_text_is_parsed_back_to_an_equal_setting(
        self, target: str, name: str, client: str, project: str
    ) -> None:
        allowed = AllowedTool(target, name, client=client, project=project)
        assert AllowedTool.parse(str(allowed)) == allowed

    @given(st.text(max_size=60))
    def test_parsing_arbitrary_text_as_an_allowed_tool_setting_succeeds_or_raises_value_error(
        self, text: str
    ) -> None:
        try:
            allowed = AllowedTool.parse(text)
        except ValueError:
            return
        assert AllowedTool.parse(str(allowed)) == allowed

    @pytest.mark.parametrize(
        "entry",
        [
            "notes",
            "tool:",
            "server:*:open",
            "tool:a:everything",
            "tool:a:",
            "server:a project=src",
            "tool:a b",
        ],
    )
    def test_invalid_value_in_the_allowed_tools_setting_prevents_startup(
        self, open_notes: OpenNotes, entry: str
    ) -> None:
        with pytest.raises(ConfigError, match="allowed_tools"):
            open_notes(entry)

    def test_tool_listed_as_allowed_in_project_settings_is_still_refused_without_approval(
        self, open_notes: OpenNotes, project: Path
    ) -> None:
        (project / "toolfold.yaml").write_text("approval:\n  allowed_tools: ['server:notes']\n")
        runtime = open_notes()
        assert delete(runtime) == REFUSAL


class TestCoverage:
    def test_error_for_a_refused_tool_call_contains_the_toolfold_command_that_allows_the_tool(
        self, open_notes: OpenNotes
    ) -> None:
        assert delete(open_notes()) == REFUSAL

    @pytest.mark.parametrize("entry", [f"tool:{DELETE}", "server:notes", "server:notes:destructive"])
    def test_allowed_tool_runs_without_approval_and_the_call_is_recorded_in_the_audit_log(
        self, open_notes: OpenNotes, entry: str
    ) -> None:
        runtime = open_notes(entry)
        assert delete(runtime) is None
        (logged,) = build_audit(runtime.config).read_entries()
        assert (logged["allowed"], logged["by"]) == (True, "allowed tool")

    @pytest.mark.parametrize("entry", ["tool:mcp_notes_echo", "server:other", "tool:notes", "server:note"])
    def test_tool_call_is_refused_if_the_allowed_tools_setting_lists_only_other_tools_or_servers(
        self, open_notes: OpenNotes, entry: str
    ) -> None:
        assert delete(open_notes(entry)) == REFUSAL

    def test_call_of_an_allowed_tool_is_refused_if_a_deny_rule_lists_the_tool(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes("server:notes", **{"approval.deny": [f"tool:{DELETE}"]})
        assert "the setting approval.deny forbids this" in (delete(runtime) or "")

    def test_dangerous_command_in_the_arguments_of_an_allowed_tool_still_needs_approval(
        self, open_notes: OpenNotes
    ) -> None:
        session = open_notes("server:notes").session()
        error = session.call_sync(DELETE, {"text": "x", "command": "rm -rf src"}).error or ""
        assert "nobody could be asked" in error
        assert "approvals allow" not in error

    def test_allowed_tool_still_cannot_change_the_configuration_of_toolfold(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes("server:notes")
        error = delete(runtime, str(runtime.config.paths.user_file)) or ""
        assert "this is always blocked, even with approval" in error

    def test_call_of_a_tool_allowed_for_one_client_is_refused_for_other_clients(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes("server:notes client=desk")
        assert delete(runtime, client="desk") is None
        assert build_audit(runtime.config).read_entries()[-1]["client"] == "desk"
        assert delete(runtime, client="desk2") == REFUSAL
        assert delete(runtime) == REFUSAL

    def test_call_of_a_tool_allowed_for_one_project_is_refused_in_other_projects(
        self, open_notes: OpenNotes, project: Path
    ) -> None:
        assert delete(open_notes(f"server:notes project={project}")) is None
        assert delete(open_notes(f"server:notes project={project.parent}")) == REFUSAL

    def test_mcp_server_declared_by_a_project_is_allowed_only_by_a_setting_for_this_project(
        self, open_notes: OpenNotes, project: Path, tmp_path: Path
    ) -> None:
        from toolfold.config import trust_project

        words = f"{{command: {sys.executable}, args: ['{NOTES}', '{tmp_path / 'record'}']}}"
        (project / "toolfold.yaml").write_text(f"mcp:\n  servers:\n    shared: {words}\n")
        trust_project(project, open_notes().config.paths)
        shared = "mcp_shared_delete_note"
        for entry, runs in (("server:shared", False), (f"server:shared project={project}", True)):
            runtime = open_notes(entry)
            assert runtime.session().call_sync(shared, {"text": "x"}).ok is runs


class TestChanges:
    def test_allowed_tool_added_or_removed_by_toolfold_takes_effect_in_an_open_runtime(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes()
        assert delete(runtime) == REFUSAL
        entry = AllowedTool("server", "notes")
        build_allowed_tools(runtime.config).add(entry)
        assert delete(runtime) is None
        build_allowed_tools(runtime.config).remove(str(entry))
        assert delete(runtime) == REFUSAL

    def test_allowed_tool_added_to_the_settings_by_another_program_is_ignored_by_an_open_runtime(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes()
        set_value(runtime.config.paths.user_file, KEY, ["server:notes"])  # without a record
        assert delete(runtime) == REFUSAL

    def test_allowed_tool_added_by_another_program_stays_ignored_when_toolfold_saves_settings(
        self, open_notes: OpenNotes
    ) -> None:
        runtime = open_notes()
        file = runtime.config.paths.user_file
        set_value(file, KEY, ["server:notes"])
        set_value(file, "log_level", "error", record=SettingsRecord(runtime.config.paths.state_dir))
        assert delete(runtime) == REFUSAL


class TestSessionGrants:
    def test_session_approval_of_a_destructive_tool_also_allows_calls_with_different_arguments(
        self, open_notes: OpenNotes
    ) -> None:
        asked: list[ApprovalRequest] = []

        def approve(request: ApprovalRequest) -> Answer:
            asked.append(request)
            return Answer.SESSION

        session = open_notes(approver=approve).session()
        assert all(session.call_sync(DELETE, {"text": text}).ok for text in ("one", "two", "three"))
        assert [each.args for each in asked] == [{"text": "one"}]
        assert asked[0].session_covers == f"any call of {DELETE}, with any arguments"
        assert asked[0].kinds == ("call of notes that can destroy data",)

    def test_destructive_tool_approved_for_one_call_needs_approval_again_for_the_next_call(
        self, open_notes: OpenNotes
    ) -> None:
        asked: list[ApprovalRequest] = []
        session = open_notes(approver=lambda request: not asked.append(request)).session()  # type: ignore[func-returns-value]
        assert all(session.call_sync(DELETE, {"text": text}).ok for text in ("one", "two"))
        assert len(asked) == 2

    def test_session_approval_of_a_tool_does_not_allow_dangerous_commands_in_its_arguments(
        self, open_notes: OpenNotes
    ) -> None:
        answers = iter([Answer.SESSION, Answer.DENY])
        session = open_notes(approver=lambda _: next(answers)).session()
        assert session.call_sync(DELETE, {"text": "one"}).ok
        error = session.call_sync(DELETE, {"text": "one", "command": "rm -rf src"}).error or ""
        assert "the request was declined" in error

    async def test_single_approval_of_one_of_two_concurrent_calls_does_not_allow_the_other_call(
        self, open_notes: OpenNotes
    ) -> None:
        asked: list[Any] = []

        def approve(request: ApprovalRequest) -> Answer:
            asked.append(request.args["text"])
            return Answer.ONCE if request.args["text"] == "one" else Answer.DENY

        session = open_notes(approver=approve).session()
        done = await asyncio.gather(*(session.call(DELETE, {"text": text}) for text in ("one", "two")))
        assert [each.ok for each in done] == [True, False]
        assert sorted(asked) == ["one", "two"]
