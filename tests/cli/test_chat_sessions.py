"""Sessions of `toolfold chat`: opening, closing and keeping them, and the lines about their running calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scripts import WriteScript, write_script
from toolfold import Runtime
from toolfold.agent import Agent
from toolfold.cli.activity import CallLines
from toolfold.cli.agent_options import AgentOpener, AgentOptions
from toolfold.cli.chat import Chat
from toolfold.cli.chat_screen import PlainScreen
from toolfold.core.events import ToolFinished, ToolProgressed, ToolStarted
from toolfold.state.store import SqliteSessionStore

__all__ = ["write_script"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def run_chat(
    opener: AgentOpener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str
) -> tuple[int, str]:
    """Run a chat with lines of input; return its exit code and the id of the session at its end."""
    file = tmp_path / "input"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with file.open(encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stdin", stream)
        chat = Chat(opener, PlainScreen())
        with chat.closing():
            return chat.run(), chat.agent.session_id


class TestKeptSessions:
    def test_chat_continues_the_current_session_if_a_new_session_cannot_be_opened(
        self,
        runtime: Runtime,
        store: SqliteSessionStore,
        write_script: WriteScript,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        model = write_script("First answer.", "Second answer.")

        class RemovesScript(AgentOpener):
            def open_new(self, model: str = "") -> Agent:
                agent = super().open_new(model)
                Path(model.removeprefix("scripted:")).unlink()
                return agent

        opener = RemovesScript(runtime, store, AgentOptions(model=model))
        code, session_id = run_chat(opener, monkeypatch, tmp_path, "/new", "Hello", "/exit")
        assert code == 0
        assert "First answer." in capsys.readouterr().out
        assert [each.id for each in store.list_sessions()] == [session_id]

    def test_resumed_chat_session_stays_stored_after_undo_of_its_only_message(
        self,
        runtime: Runtime,
        store: SqliteSessionStore,
        write_script: WriteScript,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        options = AgentOptions(model=write_script("Answer."))
        _, session_id = run_chat(AgentOpener(runtime, store, options), monkeypatch, tmp_path, "Question")
        resumed = AgentOpener(runtime, store, AgentOptions(model=options.model, session=session_id))
        run_chat(resumed, monkeypatch, tmp_path, "/undo")
        assert [each.id for each in store.list_sessions()] == [session_id]

    def test_chat_session_without_messages_is_not_stored(
        self,
        runtime: Runtime,
        store: SqliteSessionStore,
        write_script: WriteScript,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        opener = AgentOpener(runtime, store, AgentOptions(model=write_script("Answer.")))
        run_chat(opener, monkeypatch, tmp_path, "/new", "/new")
        assert store.list_sessions() == []

    def test_ctrl_c_during_a_slash_command_does_not_end_the_chat(
        self,
        runtime: Runtime,
        store: SqliteSessionStore,
        write_script: WriteScript,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        class Interrupted(AgentOpener):
            def open_first(self) -> Agent:
                return super().open_new(self.options.model)

            def open_new(self, model: str = "") -> Agent:
                raise KeyboardInterrupt

        opener = Interrupted(runtime, store, AgentOptions(model=write_script("Answer.")))
        code, _ = run_chat(opener, monkeypatch, tmp_path, "/new", "Question")
        assert code == 0
        assert "Answer." in capsys.readouterr().out


class TestRunningCalls:
    def test_running_calls_of_agent_and_sub_agent_with_equal_ids_are_listed_separately(
        self,
    ) -> None:
        lines = CallLines("main")
        for session_id, tool in (("main", "delegate"), ("helper", "count_boats")):
            lines.read(
                ToolStarted(session_id=session_id, call_id="1", tool=tool, arguments={}, toolset="", emoji="")
            )
        assert [each.by_sub_agent for each in lines.list_running()] == [False, True]
        finished = lines.read(
            ToolFinished(session_id="helper", call_id="1", tool="count_boats", ok=True, duration_s=0.1)
        )
        assert "count_boats" in str(finished)
        assert ["delegate" in str(each) for each in lines.list_running()] == [True]

    def test_progress_of_a_finished_call_is_not_shown_for_a_later_call_with_the_same_id(self) -> None:
        lines = CallLines("main")
        started = ToolStarted(session_id="main", call_id="1", tool="copy", arguments={}, toolset="", emoji="")
        lines.read(started)
        lines.read(ToolProgressed(session_id="main", call_id="1", tool="copy", message="half done"))
        assert "half done" in str(lines.list_running()[0])
        lines.read(ToolFinished(session_id="main", call_id="1", tool="copy", ok=True, duration_s=0.1))
        lines.read(started)
        assert "half done" not in str(lines.list_running()[0])
