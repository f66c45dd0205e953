"""`toolfold chat`: the real program in a pseudo-terminal, and through a pipe."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from tests.cases import check_cases
from tests.cli.scripts import WriteScript, call, write_script
from tests.cli.terminal_driver import ALT_ENTER, CTRL_C, CTRL_D, ENTER, TAB, UP, Terminal
from tests.cli.test_process import TOOLFOLD
from tests.known_vectors import LIGHT_MODEL
from toolfold.cli.chat_input import HistoryFile
from toolfold.cli.chat_markdown import MarkdownStream
from toolfold.cli.chat_screen import _draw_markdown
from toolfold.cli.demo_conversation import CLEAN_UP, MESSAGES

__all__ = ["write_script"]

TIMEOUT_S = 120
FAULT_SERVER = str(Path(__file__).parents[1] / "mcp" / "fault_server.py")
LONG_TEXT = "word " * 40_000
OpenChat = Callable[..., Terminal]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    unwanted = ("_API_KEY", "NO_COLOR", "COLUMNS", "LINES")  # the last two override the terminal's size
    kept = {name: value for name, value in os.environ.items() if not name.endswith(unwanted)}
    return {**kept, "TOOLFOLD_HOME": str(tmp_path / "home"), **LIGHT_MODEL}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


@pytest.fixture
def open_chat(environment: dict[str, str], project: Path) -> Iterator[OpenChat]:
    """Return a function that starts the chat with a model and waits for its prompt."""
    with ExitStack() as opened:

        def start(
            model: str, *options: str, env: dict[str, str] | None = None, columns: int = 100
        ) -> Terminal:
            terminal = Terminal(
                [TOOLFOLD, "chat", "--model", model, *options],
                env={**environment, **(env or {})},
                cwd=project,
                columns=columns,
            )
            opened.enter_context(terminal)
            terminal.wait_for_prompt()
            return terminal

        yield start


def finish_turn(terminal: Terminal, number: int = 1) -> None:
    """Wait for the end of the given turn."""
    terminal.wait_for("tokens in,", count=number)
    terminal.wait_for_prompt()


class TestTurn:
    def test_chat_renders_markdown_and_lists_tool_calls_in_order(
        self, open_chat: OpenChat, write_script: WriteScript, project: Path
    ) -> None:
        (project / "notes.txt").write_text("four boats", encoding="utf-8")
        model = write_script(
            call("read_file", "I look **there**.", path="notes.txt"),
            "There are:\n\n- four boats\n- one `pier`\n\n```python\nboats = 4\n```\n\n"
            "Done, see [map](http://x.example).",
        )
        chat = open_chat(model)
        chat.send("How many boats?")
        finish_turn(chat)
        assert "tools sent" in chat.text
        assert "I look there." in chat.text
        assert re.search(r'📖 read_file\(path="notes.txt".*\) ✓ \d', chat.text)
        assert " • four boats" in chat.text
        assert "boats = 4" in chat.text
        assert "map (http://x.example)" in chat.text
        assert "**" not in chat.text
        assert "```" not in chat.text
        assert (
            chat.text.index("I look there.") < chat.text.index("read_file(") < chat.text.index("four boats")
        )

    @pytest.mark.thorough
    def test_chat_shows_a_running_tool_call_and_marks_the_call_as_done_when_it_ends(
        self, open_chat: OpenChat, write_script: WriteScript, project: Path
    ) -> None:
        model = write_script(call("terminal", command="while [ ! -e go ]; do sleep 0.1; done"), "It went.")
        chat = open_chat(model)
        chat.send("Wait")
        chat.wait_for("terminal(command=")
        assert "✓" not in chat.text
        (project / "go").touch()
        finish_turn(chat)
        assert re.search(r"terminal\(command=.*✓ ", chat.text)

    @pytest.mark.thorough
    def test_model_answer_longer_than_the_screen_is_printed_completely_and_without_repetition(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        paragraphs = [f"Paragraph number {number} of the answer." for number in range(120)]
        chat = open_chat(write_script("\n\n".join(paragraphs)))
        chat.send("Tell me")
        finish_turn(chat)
        assert [each for each in paragraphs if chat.text.count(each) != 1] == []

    @pytest.mark.thorough
    def test_chat_shows_tool_calls_of_sub_agents_indented(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        steps = (call("delegate_task", goal="Plan it"), call("todo", todos=[]), "Planned.", "All done.")
        chat = open_chat(write_script(*steps))
        chat.send("Delegate")
        finish_turn(chat)
        assert re.search(r"↳ .*todo\(", chat.text)
        assert "All done." in chat.text

    @pytest.mark.thorough
    def test_chat_shows_an_error_of_the_model_provider_and_continues(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script({"error": "the key was rejected", "kind": "authentication"}, "Better."))
        chat.send("One")
        finish_turn(chat)
        assert "error: the key was rejected" in chat.text
        chat.send("Two")
        finish_turn(chat, 2)
        assert "Better." in chat.text


class TestQuestions:
    @pytest.mark.parametrize(("answer", "exists"), [("y", False), ("n", True)])
    def test_chat_asks_for_approval_and_runs_a_risky_call_only_after_the_answer_yes(
        self, answer: str, exists: bool, open_chat: OpenChat, write_script: WriteScript, tmp_path: Path
    ) -> None:
        victim = tmp_path / "outside"
        victim.mkdir()
        chat = open_chat(write_script(call("terminal", command=f"rm -rf {victim}"), "That was it."))
        chat.send("Clean up")
        chat.wait_for("Your answer >")
        assert "terminal needs your approval" in chat.text
        assert str(victim) in chat.text
        assert victim.exists()
        chat.send(answer)
        finish_turn(chat)
        assert victim.exists() is exists
        assert ("✗ refused" in chat.text) is exists
        assert "That was it." in chat.text

    def test_keys_typed_before_an_approval_question_appears_do_not_answer_the_question(
        self, open_chat: OpenChat, write_script: WriteScript, tmp_path: Path, project: Path
    ) -> None:
        victim = tmp_path / "outside"
        victim.mkdir()
        wait = call("terminal", command="while [ ! -e go ]; do sleep 0.1; done")
        chat = open_chat(write_script(wait, call("terminal", command=f"rm -rf {victim}"), "Kept."))
        chat.send("Clean up")
        chat.wait_for("terminal(command=")
        chat.type("y\n")
        (project / "go").touch()
        chat.wait_for("Your answer >")
        chat.send("n")
        finish_turn(chat)
        assert victim.exists()

    @pytest.mark.thorough
    def test_user_can_answer_a_clarifying_question_of_the_model_by_number_or_text(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        ask = call("clarify", question="Which pier?\x1b[31m", choices=["north", "south"])
        chat = open_chat(write_script(ask, "Noted.", ask, "Noted again."))
        chat.send("Count boats")
        chat.wait_for("Your answer >")
        assert "Which pier?‹ESC›" in chat.text
        chat.send("2")
        finish_turn(chat)
        chat.send("Count again")
        chat.wait_for("Your answer >", count=2)
        chat.send("the old one")
        finish_turn(chat, 2)
        chat.type(CTRL_D)
        chat.wait_for_exit()
        shown = show_last_session(chat)
        assert '{"answer":"south"}' in shown
        assert '{"answer":"the old one"}' in shown


def show_last_session(chat: Terminal) -> str:
    """Return the stored conversation of a chat that has ended."""
    done = subprocess.run(
        [TOOLFOLD, "sessions", "show", "last"],
        env={**chat.env, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


class TestInterruption:
    @pytest.mark.thorough
    def test_ctrl_c_stops_a_streamed_answer_and_the_next_message_is_answered(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script(LONG_TEXT, "I am still here.", delay_s=0.01))
        chat.send("Talk")
        chat.wait_for("word word")
        chat.type(CTRL_C)
        finish_turn(chat)
        assert "stopped" in chat.text
        chat.send("Are you there?")
        finish_turn(chat, 2)
        assert "I am still here." in chat.text

    def test_ctrl_c_stops_a_running_command_and_the_next_message_is_answered(
        self, open_chat: OpenChat, write_script: WriteScript, project: Path
    ) -> None:
        command = "echo $$ > pid; exec sleep 600"
        chat = open_chat(write_script(call("terminal", command=command), "Next one."))
        chat.send("Sleep")
        chat.wait_for("terminal(command=")
        wait_until(lambda: (project / "pid").exists() and (project / "pid").read_text().strip() != "")
        chat.type(CTRL_C)
        finish_turn(chat)
        assert re.search(r"terminal\(command=.*✗", chat.text)
        assert "The call was cancelled." in chat.text
        pid = int((project / "pid").read_text())
        wait_until(lambda: not is_running(pid))
        chat.send("Go on")
        finish_turn(chat, 2)
        assert "Next one." in chat.text

    def test_ctrl_c_at_an_approval_question_denies_the_call_and_the_chat_continues(
        self, open_chat: OpenChat, write_script: WriteScript, tmp_path: Path
    ) -> None:
        victim = tmp_path / "outside"
        victim.mkdir()
        chat = open_chat(write_script(call("terminal", command=f"rm -rf {victim}"), "Fine."))
        chat.send("Clean up")
        chat.wait_for("Your answer >")
        chat.type(CTRL_C)
        finish_turn(chat)
        chat.send("Good")
        finish_turn(chat, 2)
        assert "Fine." in chat.text
        assert victim.exists()

    @pytest.mark.thorough
    def test_ctrl_c_cancels_an_elicitation_of_an_mcp_server_and_the_chat_continues(
        self, open_chat: OpenChat, write_script: WriteScript, environment: dict[str, str]
    ) -> None:
        command = json.dumps({"command": sys.executable, "args": [FAULT_SERVER, "--fault", "asks-back"]})
        settings = Path(environment["TOOLFOLD_HOME"]) / "config.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"mcp:\n  wait_seconds: 60\n  servers:\n    nosy: {command}\n", encoding="utf-8")
        ask = {"calls": [{"name": "mcp_nosy_echo", "arguments": {"text": "now"}}]}
        chat = open_chat(write_script(ask, "Fine."))
        chat.send("Ask the server")
        chat.wait_for("Answer it?")
        chat.type(CTRL_C)
        finish_turn(chat)
        chat.send("Good")
        finish_turn(chat, 2)
        assert "Fine." in chat.text

    @pytest.mark.thorough
    def test_ctrl_c_at_the_chat_prompt_clears_the_input_and_a_second_ctrl_c_ends_the_chat(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script("Hello."))
        chat.type("half a message")
        chat.wait_for("half a message")
        chat.type(CTRL_C)
        chat.wait_for_prompt()
        chat.type(CTRL_C)
        chat.wait_for("Ctrl-C again or Ctrl-D leaves the chat.")
        chat.wait_for_prompt()
        chat.type(CTRL_C)
        assert chat.wait_for_exit() == 0

    @pytest.mark.thorough
    def test_sigterm_during_an_answer_ends_the_chat_and_the_session_stays_stored(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script(LONG_TEXT, delay_s=0.01))
        chat.send("Talk")
        chat.wait_for("word word")
        chat.process.send_signal(signal.SIGTERM)
        assert chat.wait_for_exit() == 130
        assert "> Talk" in show_last_session(chat)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


class TestInput:
    @pytest.mark.thorough
    def test_alt_enter_or_a_trailing_backslash_adds_a_line_to_the_chat_message(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script("Seen."))
        chat.type(f"first{ALT_ENTER}second\\{ENTER}third")
        chat.wait_for("third")
        assert "tokens in," not in chat.text
        chat.type(ENTER)
        finish_turn(chat)
        chat.type(CTRL_D)
        assert chat.wait_for_exit() == 0
        assert "> first\n> second\n> third" in show_last_session(chat)

    @pytest.mark.thorough
    def test_lines_typed_during_a_chat_turn_are_sent_one_after_the_other_when_the_turn_ends(
        self, open_chat: OpenChat, write_script: WriteScript, project: Path
    ) -> None:
        wait = call("terminal", command="while [ ! -e go ]; do sleep 0.1; done")
        chat = open_chat(write_script(wait, "First answer.", "Second answer.", "Third answer."))
        chat.send("First")
        chat.wait_for("terminal(command=")
        chat.type(f"Second mesX\x7fsage{ENTER}Third message{ENTER}/quit{ENTER}/tools{ENTER}")
        (project / "go").touch()
        assert chat.wait_for_exit() == 0
        assert "there is no command" not in chat.text
        shown = show_last_session(chat)
        assert shown.index("> Second message\n") < shown.index("Second answer.")
        assert shown.index("Second answer.") < shown.index("> Third message\n") < shown.index("Third answer.")

    @pytest.mark.thorough
    def test_chat_completes_slash_commands_with_tab_and_remembers_messages_for_the_next_chat(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        model = write_script("Seen.")
        chat = open_chat(model)
        chat.type("/he")
        chat.wait_for("show this list")  # the menu
        chat.type(TAB + ENTER + ENTER)
        chat.wait_for("/undo")
        chat.wait_for_prompt()
        chat.send("A message to remember")
        finish_turn(chat)
        chat.type(CTRL_D)
        assert chat.wait_for_exit() == 0
        again = open_chat(model)
        again.type(UP)
        again.wait_for("A message to remember")

    def test_chat_history_file_is_readable_only_by_its_owner_and_keeps_the_latest_entries(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "state" / "history"
        history = HistoryFile(file, max_entries=3)
        for number in range(8):
            history.append(f"message {number}\nwith two lines")
        with file.open("a", encoding="utf-8") as stream:
            stream.write("not json\n")
        assert file.stat().st_mode & 0o077 == 0
        assert history.read() == ["message 6\nwith two lines", "message 7\nwith two lines"]
        assert len(file.read_text(encoding="utf-8").splitlines()) == 3


class TestCommands:
    @pytest.mark.thorough
    def test_slash_commands_such_as_tools_and_cost_print_information_about_the_chat_session(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        other = write_script("From the other model.", name="other")
        chat = open_chat(write_script("Hello."), "--toolset", "file")
        chat.send("/why")
        chat.wait_for("no message was sent yet")
        chat.wait_for_prompt()
        chat.send("Hi")
        finish_turn(chat)
        chat.send("/tools read")
        chat.wait_for("read_file")
        chat.wait_for_prompt()
        chat.send("/why")
        chat.wait_for("tools sent: no tool is deferrable")
        chat.wait_for_prompt()
        chat.send("/cost")
        chat.wait_for("Sending fewer tools saved")
        chat.wait_for_prompt()
        chat.send("/model nonsense:x")
        chat.wait_for("names no known model provider")
        chat.wait_for_prompt()
        chat.send(f"/model {other}")
        chat.wait_for("model: scripted:")
        chat.wait_for_prompt()
        chat.send("Who are you?")
        finish_turn(chat, 2)
        assert "From the other model." in chat.text
        chat.send("/halp")
        chat.wait_for("Did you mean /help")

    @pytest.mark.thorough
    def test_slash_command_why_explains_why_each_tool_was_sent(
        self, open_chat: OpenChat, write_script: WriteScript, environment: dict[str, str]
    ) -> None:
        settings = Path(environment["TOOLFOLD_HOME"]) / "config.yaml"
        settings.parent.mkdir(parents=True)
        settings.write_text("tools:\n  selection: keyword\n  rag_top_k: 2\n", encoding="utf-8")
        chat = open_chat(write_script("Hello."))
        chat.send("Which files contain the word harbour?")
        finish_turn(chat)
        chat.send("/why")
        chat.wait_for("why it was sent")
        chat.wait_for_prompt()
        assert "search_files" in chat.text

    @pytest.mark.thorough
    def test_message_that_starts_with_a_path_is_not_a_slash_command(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script("It names hosts."))
        chat.send("/etc/hosts is what?")
        finish_turn(chat)
        assert "It names hosts." in chat.text

    @pytest.mark.thorough
    def test_slash_command_undo_removes_the_last_turn_and_puts_its_message_into_the_input_line(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script("First answer.", "Second answer."))
        chat.send("/undo")
        chat.wait_for("there is no message to take back")
        chat.wait_for_prompt()
        chat.send("A question")
        finish_turn(chat)
        chat.send("/undo")
        chat.wait_for("› A question", count=2)
        chat.send(" again")
        finish_turn(chat, 2)
        chat.type(CTRL_D)
        chat.wait_for_exit()
        shown = show_last_session(chat)
        assert "> A question again" in shown
        assert "First answer." not in shown
        assert "Second answer." in shown

    @pytest.mark.thorough
    def test_slash_command_resume_continues_a_stored_session(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        first = open_chat(write_script("The password is mango."))
        first.send("Remember something")
        finish_turn(first)
        first.type(CTRL_D)
        first.wait_for("continue this session: toolfold chat --session")
        first.wait_for_exit()
        second = open_chat(write_script("Resumed answer.", name="second"))
        second.send("/resume")
        second.wait_for("Remember something")
        second.wait_for_prompt()
        second.send("/resume 2")
        second.wait_for("The password is mango.")
        second.wait_for_prompt()
        second.send("What was it?")
        finish_turn(second)
        second.type(CTRL_D)
        second.wait_for_exit()
        shown = show_last_session(second)
        assert "> Remember something" in shown
        assert "> What was it?" in shown
        listed = subprocess.run(
            [TOOLFOLD, "sessions", "list", "--json"],
            env=second.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert listed.stdout.count('"id"') == 1  # the empty session was not kept


class TestTerminals:
    def test_escape_sequences_in_model_and_tool_output_are_not_sent_to_the_terminal(
        self, open_chat: OpenChat, write_script: WriteScript, project: Path
    ) -> None:
        attack = "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x9b5m\u202etxt\x08\x08\r"
        (project / "evil.txt").write_text(attack, encoding="utf-8")
        chat = open_chat(
            write_script(
                call("read_file", f"Text {attack}", path=f"evil.txt{attack}"),
                call("read_file", path="evil.txt"),
                f"```\n{attack}\n```\n\nEnd {attack}",
                {"error": f"failed {attack}", "kind": "bad_request"},
            )
        )
        chat.send("Go")
        finish_turn(chat)
        chat.send("Again")
        finish_turn(chat, 2)
        for sequence in ("\x1b[2J", "\x1b]0;owned", "\x07", "\x9b", "\u202e", "\x1b[31mred"):
            assert sequence not in chat.raw
        assert "toolfold scripted:" in chat.text  # the screen was not cleared

    @pytest.mark.thorough
    def test_chat_prints_no_colours_if_the_environment_variable_no_color_is_set(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(write_script(call("todo", todos=[]), "Hello **you**."), env={"NO_COLOR": "1"})
        chat.send("Hi")
        finish_turn(chat)
        codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", chat.raw) for code in found.split(";")}
        assert not codes & {str(number) for number in (*range(30, 39), *range(40, 49), *range(90, 98))}

    @pytest.mark.thorough
    def test_chat_truncates_a_tool_call_to_one_line_in_a_narrow_terminal(
        self, open_chat: OpenChat, write_script: WriteScript
    ) -> None:
        chat = open_chat(
            write_script(call("search_files", pattern="x" * 100, path="."), "Hello."), columns=40
        )
        chat.send("Hi")
        finish_turn(chat)
        assert [line for line in chat.lines if re.search(r"search_files\(.*… [✓✗] ", line)], chat.text

    @pytest.mark.thorough
    def test_terminal_echo_is_restored_after_an_interrupted_chat_ends(
        self, environment: dict[str, str], project: Path, write_script: WriteScript
    ) -> None:
        script = (
            f"{TOOLFOLD} chat --model {write_script(LONG_TEXT, delay_s=0.01)}; stty -a | grep -o '.echo '"
        )
        with Terminal(["bash", "-c", script], env=environment, cwd=project) as terminal:
            terminal.wait_for_prompt()
            terminal.send("Talk")
            terminal.wait_for("word word")
            terminal.type(CTRL_C)
            finish_turn(terminal)
            terminal.type(CTRL_D)
            assert terminal.wait_for_exit() == 0
            assert " echo" in terminal.text
            assert "-echo" not in terminal.text


class TestPlain:
    def run_piped(self, environment: dict[str, str], project: Path, text: str, *options: str) -> str:
        done = subprocess.run(
            [TOOLFOLD, "chat", *options],
            input=text,
            env=environment,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    def test_model_chosen_in_the_demo_uses_the_key_of_the_user(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with_key = {**environment, "ANTHROPIC_API_KEY": "sk-of-the-user"}
        chosen = self.run_piped(with_key, project, "/model anthropic:claude-sonnet-4-6\n", "--demo")
        assert "model: anthropic:claude-sonnet-4-6" in chosen
        without_key = self.run_piped(environment, project, "/model anthropic:claude-sonnet-4-6\n", "--demo")
        assert "model: anthropic:claude-sonnet-4-6" not in without_key

    @pytest.mark.thorough
    def test_chat_reads_each_line_of_a_pipe_as_a_message(
        self, environment: dict[str, str], project: Path, write_script: WriteScript
    ) -> None:
        (project / "notes.txt").write_text("boats", encoding="utf-8")
        model = write_script(call("read_file", path="notes.txt"), "One **bold**\nline.", "Two\x1b[31m.")
        out = self.run_piped(environment, project, "first\nsecond\\\nline\n/exit\nnever\n", "--model", model)
        assert 'read_file(path="notes.txt") ✓' in out
        assert "One **bold**\nline.\n" in out
        assert "Two[31m.\n" in out
        assert out.count("tokens in,") == 2
        assert "\x1b" not in out

    @pytest.mark.thorough
    @pytest.mark.parametrize("line", ["/", "/help"])
    def test_chat_input_of_a_single_slash_lists_the_slash_commands(
        self, line: str, environment: dict[str, str], project: Path, write_script: WriteScript
    ) -> None:
        model = write_script("Not asked.")
        out = self.run_piped(environment, project, f"{line}\n/quit\nnever\n", "--model", model)
        assert "/undo" in out
        assert "leave the chat" in out
        assert "Not asked." not in out

    @pytest.mark.thorough
    def test_unknown_slash_command_is_not_sent_to_the_model_and_similar_commands_are_suggested(
        self, environment: dict[str, str], project: Path, write_script: WriteScript
    ) -> None:
        model = write_script("Not asked.")
        out = self.run_piped(environment, project, "/foo\n/modle\n/quit\n", "--model", model)
        assert "there is no command /foo. /help lists" in out
        assert "there is no command /modle. Did you mean /model? /help" in out
        assert "Not asked." not in out

    def test_chat_without_a_terminal_refuses_calls_that_need_approval(
        self, environment: dict[str, str], project: Path, write_script: WriteScript, tmp_path: Path
    ) -> None:
        victim = tmp_path / "outside"
        victim.mkdir()
        model = write_script(call("terminal", command=f"rm -rf {victim}"), "No.")
        out = self.run_piped(environment, project, "go\ny\n", "--model", model)
        assert "✗ refused" in out
        assert victim.exists()

    @pytest.mark.thorough
    def test_chat_in_a_dumb_terminal_prints_text_without_escape_sequences(
        self, environment: dict[str, str], project: Path, write_script: WriteScript
    ) -> None:
        command = ["env", "TERM=dumb", TOOLFOLD, "chat", "--model", write_script("Plain **text**.")]
        with Terminal(command, env=environment, cwd=project) as terminal:
            terminal.wait_for(">")
            terminal.send("Hi")
            terminal.wait_for("tokens in,")
            assert "Plain **text**." in terminal.text
            assert "\x1b" not in terminal.raw
            terminal.type(CTRL_D)
            assert terminal.wait_for_exit() == 0


class TestFirstStart:
    @pytest.mark.thorough(keep=1)
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ((), "No model is configured yet."),
            (("--model", "anthropic:claude-sonnet-4-6"), "there is no key"),
        ],
    )
    def test_chat_without_a_usable_model_prints_the_problem_and_three_solutions(
        self, options: tuple[str, ...], problem: str, environment: dict[str, str], project: Path
    ) -> None:
        done = subprocess.run(
            [TOOLFOLD, "chat", *options],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 3
        assert problem in done.stderr
        assert [line[0] for line in done.stderr.splitlines()[1:4]] == ["1", "2", "3"]


class TestDemo:
    @pytest.mark.thorough
    def test_chat_demo_answers_suggested_messages_and_asks_for_approval_before_deleting_data(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat", "--demo"], env=environment, cwd=project) as chat:
            chat.wait_for_prompt()
            assert "This model is a script." in chat.text
            chat.type(UP)  # the suggested messages are in the history
            chat.wait_for(f"› {MESSAGES[0]}")
            chat.type(CTRL_C)
            chat.wait_for_prompt()
            chat.send(CLEAN_UP)
            chat.wait_for("Your answer >")
            chat.send("y")
            finish_turn(chat)
            assert "is deleted." in chat.text
            chat.send("Good morning")
            finish_turn(chat, 2)
            assert "I am a script, not a model" in chat.text
            chat.type(CTRL_D)
            assert chat.wait_for_exit() == 0
        assert not list(Path(environment["TOOLFOLD_HOME"]).rglob("sessions.db"))  # nothing was stored

    @pytest.mark.thorough
    @pytest.mark.parametrize("answer", [f"deny{ENTER}", CTRL_D], ids=["deny", "Ctrl-D"])
    def test_chat_demo_model_answers_that_the_user_declined_the_call(
        self, answer: str, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat", "--demo"], env=environment, cwd=project) as chat:
            chat.wait_for_prompt()
            chat.send(CLEAN_UP)
            chat.wait_for("Your answer >")
            chat.type(answer)
            finish_turn(chat)
            assert "You declined, so the folder old-exports stays." in chat.text
            assert "That did not work" not in chat.text

    @pytest.mark.thorough
    def test_lines_typed_while_the_chat_demo_is_indexing_tools_are_processed_one_after_the_other(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat", "--demo"], env=environment, cwd=project) as chat:
            chat.wait_for_output("indexing the sample tools")
            chat.type(f"Good morning{ENTER}/model{ENTER}/quit{ENTER}/new{ENTER}")
            assert chat.wait_for_exit() == 0
            assert "I am a script, not a model" in chat.text
            assert "model: scripted:demo" in chat.text

    @pytest.mark.thorough
    def test_chat_demo_says_how_to_switch_back_to_the_demo_model_after_another_model_was_chosen(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat", "--demo"], env=environment, cwd=project) as chat:
            chat.wait_for_prompt()
            chat.send("/model ollama:small")
            chat.wait_for("/model scripted:demo returns to the demo model.")
            chat.wait_for_prompt()
            chat.send("/model scripted:demo")
            chat.wait_for("model: scripted:demo")
            chat.wait_for_prompt()
            chat.send("Good morning")
            finish_turn(chat)
            assert "I am a script, not a model" in chat.text

    @pytest.mark.thorough
    def test_chat_shows_the_same_number_of_tools_in_the_banner_and_turn_summary_and_tool_list(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat", "--demo"], env=environment, cwd=project) as chat:
            chat.wait_for_prompt()
            chat.send(MESSAGES[1])
            finish_turn(chat)
            chat.send("/tools")
            chat.wait_for("/tools WORD lists some of them")
            banner = re.search(r"scripted:demo · (\d+) tools", chat.text)
            turn = re.search(r"\d+ of (\d+) tools sent", chat.text)
            listed = re.search(r"(\d+) tools, \d+ more not available", chat.text)
            assert banner
            assert turn
            assert listed
            assert banner[1] == turn[1] == listed[1]

    @pytest.mark.thorough
    def test_chat_without_a_configured_model_offers_to_start_the_demo(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with Terminal([TOOLFOLD, "chat"], env=environment, cwd=project) as chat:
            chat.wait_for("Start the demo now?")
            chat.send("n")
            assert chat.wait_for_exit() == 3
        with Terminal([TOOLFOLD, "chat"], env=environment, cwd=project) as chat:
            chat.wait_for("Start the demo now?")
            chat.send("")
            chat.wait_for_prompt()
            assert "This model is a script." in chat.text


@pytest.mark.thorough
def test_recorded_chat_in_the_readme_equals_the_current_output_of_the_chat() -> None:
    script = Path(__file__).parents[2] / "scripts" / "record_chat.py"
    done = subprocess.run(
        [sys.executable, script, "--check"],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class TestMarkdownStream:
    TEXT = (
        "# Title\n\nA paragraph\nof two lines.\n\n- one\n- two\n\n  more\n\n```\na\n\nb\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd."
    )

    @check_cases("size", [1, 2, 7, 24, 1_000])
    def test_markdown_blocks_do_not_depend_on_how_the_streamed_text_is_split_into_chunks(
        self, size: int
    ) -> None:
        stream, blocks = MarkdownStream(), list[str]()
        for start in range(0, len(self.TEXT), size):
            blocks += stream.add(self.TEXT[start : start + size])
        blocks += stream.finish()
        assert "\n\n".join(blocks) == self.TEXT
        assert stream.pending == ""

    def test_complete_markdown_block_is_returned_while_the_next_block_is_still_streamed(self) -> None:
        stream = MarkdownStream()
        assert stream.add("One.\n\nTwo") == ["One."]
        assert stream.pending == "Two"

    @check_cases(
        "markup",
        ["{}", "# {}", "- {}", "[pier]({})", "![{}](pier.png)", "| {} |\n|---|\n| {} |", "```{}\nx\n```"],
    )
    def test_html_entities_for_control_characters_in_markdown_are_not_sent_to_the_terminal(
        self, markup: str
    ) -> None:
        console = Console(file=io.StringIO(), force_terminal=False, width=200)
        console.print(_draw_markdown(markup.replace("{}", "a&#x202e;b&#27;c&#x9b;d")))
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert not set(printed) & {"\u202e", "\x1b", "\x9b"}
