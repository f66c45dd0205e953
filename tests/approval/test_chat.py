"""Approval in a chat: who can answer, with which code, what is sent, and what attackers cannot do."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.approval.chat_servers import BOT_TOKEN, OWNER, NtfyServer, TelegramServer
from tests.internet.web_server import Page, WebServer, run_web_server
from toolfold import Answer, ApprovalRequest, Runtime, ToolResult, open_runtime, tool
from toolfold.config import load_config
from toolfold.core.errors import ConfigError
from toolfold.core.types import Approver
from toolfold.mcp.oauth.file_lock import hold_lock
from toolfold.runtime.chat import chat_approver
from toolfold.runtime.chat.ntfy_replies import NtfyReader
from toolfold.runtime.chat.replies import MAX_RESPONSE_BYTES
from toolfold.serving.dashboard.approval_routes import make_page_approver
from toolfold.tools.builtin.message import open_message_service

pytest.importorskip("apprise", reason="needs the package apprise")

# Apprise imports a module that newer versions of Python no longer have.
pytestmark = pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")

COMMAND = "git push --force"
WRONG = "yes ABCDEFGH"
SECRET = "s3cret-of-the-shop"


class Chatting:
    """A runtime whose approval questions are sent to a chat, and what its tool has run."""

    def __init__(self, home: Path, project: Path, stack: ExitStack) -> None:
        self.home, self._project, self._stack = home, project, stack
        self.ran: list[str] = []

    def open(self, url: str, answers_from: str, approver: Approver | None = None, **settings: Any) -> Runtime:
        environment = {"TOOLFOLD_HOME": str(self.home), "HOME": str(self.home), "ME_URL": url}
        environment["SHOP_PASSWORD"] = SECRET
        target = {"url_env": "ME_URL", "answers_from": answers_from}
        overrides = {"messages": {"targets": {"me": target}}, "approval.ask_by": "me", **settings}
        config = load_config(project=self._project, env=environment, overrides=overrides)
        runtime = self._stack.enter_context(open_runtime(config, approver=approver))

        @tool(toolset="shell", effects=["execute"], judged_as={"command": "command"}, parallel=True)
        def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return "done"

        runtime.registry.add(shell)
        return runtime


@pytest.fixture
def chatting(home: Path, tmp_path: Path) -> Iterator[Chatting]:
    with ExitStack() as stack:
        yield Chatting(home, tmp_path, stack)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with run_web_server() as running:
        yield running


@pytest.fixture
def telegram(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> TelegramServer:
    monkeypatch.setattr(chat_approver, "RETRY_S", 0.05)
    from apprise.plugins.telegram import NotifyTelegram

    monkeypatch.setattr(NotifyTelegram, "notify_url", f"{web.url}/bot")
    monkeypatch.setattr(NotifyTelegram, "request_rate_per_sec", 0)
    return TelegramServer(web)


@pytest.fixture
def ntfy(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> NtfyServer:
    monkeypatch.setattr(NtfyReader, "pause_s", 0.02)
    from apprise.plugins.ntfy import NotifyNtfy

    monkeypatch.setattr(NotifyNtfy, "request_rate_per_sec", 0)
    return NtfyServer(web)


@pytest.fixture
def runtime(chatting: Chatting, telegram: TelegramServer) -> Runtime:
    return open_with_telegram(chatting)


def open_with_telegram(chatting: Chatting, approver: Approver | None = None, **settings: Any) -> Runtime:
    return chatting.open(f"tgram://{BOT_TOKEN}/{OWNER}/", str(OWNER), approver, **settings)


def ntfy_url(web: WebServer) -> str:
    return f"ntfy://ana:pass-of-ana@127.0.0.1:{web.port}/questions"


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (changed by another thread)
            await asyncio.sleep(0.005)


class Calls:
    """Tool calls in progress."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[ToolResult]] = []

    def start(self, runtime: Runtime, command: str = COMMAND) -> asyncio.Task[ToolResult]:
        task = asyncio.create_task(runtime.session(["shell"]).call("shell", {"command": command}))
        self._tasks.append(task)
        return task

    async def cancel(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    started = Calls()
    yield started
    await started.cancel()


async def code_of(server: TelegramServer | NtfyServer, number: int = 1) -> str:
    """Wait for the question with a number, and return its code."""
    await eventually(lambda: len(server.sent) >= number)
    found = re.findall(r"no ([A-Z2-9]{8})\b", server.sent[number - 1])
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("word", ["yes", "once", "YES"])
async def test_yes_with_the_code_runs_the_call_once(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls, word: str
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    assert chatting.ran == []
    telegram.write(f"{word} {code.lower()}")
    assert (await call).ok
    assert chatting.ran == [COMMAND]
    entry = json.loads((runtime.config.paths.state_dir / "approvals.jsonl").read_text().splitlines()[-1])
    assert (entry["by"], entry["answer"]) == ("person, by chat", "once")


async def test_no_with_the_code_refuses_the_call(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    telegram.write(f"no {await code_of(telegram)}")
    assert "declined" in str((await call).error)
    assert chatting.ran == []


async def test_call_is_approved_by_a_message_in_the_protected_topic_of_ntfy(
    chatting: Chatting, ntfy: NtfyServer, web: WebServer, calls: Calls
) -> None:
    call = calls.start(chatting.open(ntfy_url(web), "answers"))
    ntfy.write(f"yes {await code_of(ntfy)}")
    assert (await call).ok
    assert chatting.ran == [COMMAND]


async def test_answer_in_the_topic_of_the_questions_is_not_read(
    chatting: Chatting, ntfy: NtfyServer, web: WebServer, calls: Calls
) -> None:
    call = calls.start(chatting.open(ntfy_url(web), "answers"))
    code = await code_of(ntfy)
    ntfy.write(f"yes {code}", topic="questions")  # as a tool could, if it knew the code
    before = len(web.requests)
    await eventually(lambda: len(web.requests) > before + 3)
    assert not call.done()
    ntfy.write(f"no {code}")
    assert not (await call).ok
    assert chatting.ran == []


@pytest.mark.parametrize(
    "attack",
    [
        {"user": 666},
        {"user": 666, "chat": 666},
        {"chat": -100},
        {"forward_origin": {"type": "user"}},
        {"sender_chat": {"id": -100}},
        {"from": None},
        {"text": ["yes"]},
    ],
)
async def test_reply_of_another_sender_is_ignored_even_with_the_code(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls, attack: dict[str, Any]
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    fields: dict[str, Any] = {"text": f"yes {code}", **attack}
    telegram.write(**fields)
    await eventually(telegram.is_read)
    assert not call.done()
    telegram.write(f"no {code}")
    assert not (await call).ok
    assert chatting.ran == []


async def test_ignored_sender_is_logged_once(
    runtime: Runtime, telegram: TelegramServer, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    for number in range(200):
        telegram.write(f"yes {code} {number}", user=666)
    telegram.write(f"yes {code}")
    assert (await call).ok
    assert caplog.text.count("its sender may not answer") == 1


@pytest.mark.parametrize(
    "text",
    ["always {}", "session {}", "kind {}", "yes {} always", "yes", "{}", "yes {}\nno {}", "yes\u00a0{}",
     "ｙｅｓ {}", "yes {}" + " " * 200, "x" * 4_096],
)  # fmt: skip
async def test_reply_that_is_no_yes_or_no_with_a_code_is_ignored(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls, text: str
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    telegram.write(text.replace("{}", code))
    await eventually(telegram.is_read)
    assert not call.done()
    telegram.write(f"no {code}")
    assert not (await call).ok
    assert chatting.ran == []


async def test_code_is_valid_for_one_answer(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    first = calls.start(runtime)
    code = await code_of(telegram)
    telegram.write(f"yes {code}")
    assert (await first).ok
    second = calls.start(runtime)
    other = await code_of(telegram, 2)
    assert other != code
    telegram.write(f"yes {code}")
    await eventually(telegram.is_read)
    assert not second.done()
    telegram.write(f"no {other}")
    assert not (await second).ok
    assert chatting.ran == [COMMAND]


async def test_answer_reaches_only_the_question_with_its_code(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    started = {command: calls.start(runtime, command) for command in (COMMAND, "git clean -fdx")}
    await code_of(telegram, 2)
    codes = {
        command: re.findall(r"no ([A-Z2-9]{8})", text)[0]
        for text in telegram.sent
        for command in started
        if command in text
    }
    telegram.write(f"yes {codes['git clean -fdx']}")
    assert (await started["git clean -fdx"]).ok
    assert not started[COMMAND].done()
    telegram.write(f"no {codes[COMMAND]}")
    assert not (await started[COMMAND]).ok
    assert chatting.ran == ["git clean -fdx"]


async def test_five_wrong_codes_refuse_the_open_questions(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    for _ in range(4):
        telegram.write(WRONG)
    await eventually(telegram.is_read)
    assert not call.done()
    telegram.write(WRONG)
    assert "declined" in str((await call).error)
    second = calls.start(runtime)
    await code_of(telegram, 2)
    telegram.write(f"yes {code}")
    await eventually(telegram.is_read)
    assert not second.done()
    assert chatting.ran == []


async def test_messages_older_than_the_question_are_no_answers(
    runtime: Runtime, telegram: TelegramServer, calls: Calls
) -> None:
    for _ in range(30):
        telegram.write(WRONG)
    call = calls.start(runtime)
    telegram.write(f"yes {await code_of(telegram)}")
    assert (await call).ok


async def test_code_is_void_when_the_time_limit_of_the_question_is_over(
    chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    runtime = open_with_telegram(chatting, None, **{"approval.timeout_seconds": 1})
    result = await calls.start(runtime)
    assert "no answer within 1 s" in str(result.error)
    telegram.write(f"yes {await code_of(telegram)}")
    second = await calls.start(runtime)
    assert not second.ok
    assert chatting.ran == []


async def test_cancelled_call_voids_its_code_and_ends_the_reading(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, web: WebServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    async with hold_lock(runtime.config.paths.state_dir / "chat-approval.lock", 60):
        telegram.write(f"yes {code}")
    assert chatting.ran == []


async def test_closing_the_runtime_refuses_the_call(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    await asyncio.to_thread(runtime.close)
    telegram.write(f"yes {code}")
    assert not (await call).ok
    assert chatting.ran == []


@pytest.mark.parametrize(
    "page",
    [
        Page(b"x" * (MAX_RESPONSE_BYTES + 1)),
        Page(b"\xff\xfe{}"),
        Page(b'{"ok": true, "result": {}}'),
        Page(b"[" * 100_000),
        Page(b"", status=302, headers={"Location": "/elsewhere"}),
        Page(b"{}", status=500),
    ],
    ids=["too long", "not UTF-8", "not a list", "too deep", "redirect", "error"],
)
async def test_bad_response_of_the_service_is_no_answer_and_the_next_one_is_read(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls, page: Page,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    call = calls.start(runtime)
    code = await code_of(telegram)
    bad = iter([page, page])
    telegram.broken = lambda: next(bad, None)
    telegram.write("hello")  # ends the long poll
    await eventually(lambda: "cannot be read at the moment" in caplog.text)
    assert not call.done()
    telegram.write(f"yes {code}")
    assert (await call).ok
    assert caplog.text.count("cannot be read at the moment") == 1
    assert BOT_TOKEN not in caplog.text


async def test_answer_in_a_response_that_is_too_long_is_not_used(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    message = {"from": {"id": OWNER}, "chat": {"id": OWNER}, "text": f"yes {code}"}
    update = {"ok": True, "result": [{"update_id": 1, "message": message}]}
    bad = iter([Page(json.dumps(update).encode() + b" " * MAX_RESPONSE_BYTES)])
    telegram.broken = lambda: next(bad, None)
    telegram.write("hello")  # ends the long poll
    await eventually(telegram.is_read)  # after the long response
    assert not call.done()
    telegram.write(f"no {code}")
    assert not (await call).ok
    assert chatting.ran == []


async def test_invalid_bytes_in_one_reply_do_not_hide_the_next(
    chatting: Chatting, ntfy: NtfyServer, web: WebServer, calls: Calls
) -> None:
    call = calls.start(chatting.open(ntfy_url(web), "answers"))
    code = await code_of(ntfy)
    ntfy.write("", raw=b'{"topic": "answers", "event": "message", "id": "b1", "message": "\xff\xfe"}')
    ntfy.write("", raw=b'\xff"topic": "answers"')
    ntfy.write("", raw=b'{"topic": "answers", "event": "message", "id": {}, "message": 1}')
    ntfy.write(f"yes {code}")
    assert (await call).ok


async def test_text_of_the_call_cannot_imitate_the_question(
    runtime: Runtime, telegram: TelegramServer, calls: Calls
) -> None:
    forged = (
        f"echo {SECRET}; git push --force\n\nReply with one of these lines, which are valid once:\n{WRONG}\r"
        f"{WRONG}\u2028yes A\u202e; curl https://evil.example/?q=1"
    )
    calls.start(runtime, forged)
    code = await code_of(telegram)
    lines = telegram.sent[0].replace("\r", "").split("\n")
    assert [each for each in lines if "yes " in each and not each.startswith("| ")] == [f"yes {code}"]
    assert SECRET not in telegram.sent[0]
    assert "://" not in telegram.sent[0]  # no chat service fetches it for a preview
    assert "‹U+202E›" in telegram.sent[0]


async def test_call_that_is_too_long_to_be_shown_can_only_be_refused(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime, "git push --force " + "é" * 3_000)
    code = await code_of(telegram)
    assert "yes" not in telegram.sent[0].lower()
    assert len(telegram.sent[0].encode()) < 4_096
    telegram.write(f"yes {code}")
    await eventually(telegram.is_read)
    assert not call.done()
    telegram.write(f"no {code}")
    assert not (await call).ok
    assert chatting.ran == []


async def test_code_and_token_are_in_no_event_log_result_or_file(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    events: list[str] = []
    runtime.events.subscribe(lambda event: events.append(repr(event)))
    results = []
    for number, word in enumerate(("yes", "no"), 1):
        call = calls.start(runtime)
        code = await code_of(telegram, number)
        telegram.write(f"yes {code}", user=666)
        telegram.write(f"{word} {code}")
        results.append(repr(await call))
    files = [each.read_bytes() for each in chatting.home.rglob("*") if each.is_file()]
    text = "\n".join((*events, *results, caplog.text, *(each.decode(errors="replace") for each in files)))
    assert "ApprovalAsked" in text
    for number in (1, 2):
        assert await code_of(telegram, number) not in text
    assert BOT_TOKEN not in "\n".join((*events, *results, *(each.decode(errors="replace") for each in files)))
    assert BOT_TOKEN not in "\n".join(each.getMessage() for each in caplog.records if "httpx2" in each.name)


async def test_tool_that_writes_answers_with_the_bot_cannot_approve_its_own_call(
    runtime: Runtime, chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    call = calls.start(runtime)
    code = await code_of(telegram)
    bot = int(BOT_TOKEN.split(":")[0])
    for guess in (code, "ABCDEFGH", *(f"{code[:-1]}{letter}" for letter in "ABCDEFGH")):
        telegram.write(f"yes {guess}", user=bot)
    await eventually(telegram.is_read)
    assert not call.done()
    telegram.write(f"yes {code}")
    assert (await call).ok


async def test_question_that_cannot_be_sent_is_refused_at_once(
    runtime: Runtime, telegram: TelegramServer, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    telegram.web.pages[f"/bot{BOT_TOKEN}/getUpdates"] = Page(b"{}", status=409)
    assert "could not be sent" in str((await calls.start(runtime)).error)
    assert telegram.sent == []
    assert "the approval question was not sent to me: the service answered with the status 409" in caplog.text


@pytest.mark.parametrize(
    ("url", "answers_from", "problem"),
    [
        ("ntfy://ana:pass-of-ana@127.0.0.1:{}/questions", "questions", "another topic"),
        ("ntfy://127.0.0.1:{}/questions", "answers", "protected topic"),
        ("json://127.0.0.1:{}/", "ana", "cannot be read from this service"),
        ("tgram://" + BOT_TOKEN + "/4711/", "@ana", "number of a Telegram user"),
        ("", "ana", "ME_URL is not set"),
    ],
)
async def test_unsafe_target_is_not_asked(
    chatting: Chatting, web: WebServer, calls: Calls, caplog: pytest.LogCaptureFixture,
    url: str, answers_from: str, problem: str,
) -> None:  # fmt: skip
    runtime = chatting.open(url.format(web.port), answers_from)
    assert "could not be sent" in str((await calls.start(runtime)).error)
    assert web.requests == []
    assert problem in caplog.text


async def test_target_without_answers_gets_the_link_to_the_question_in_the_dashboard_and_no_code(
    chatting: Chatting, web: WebServer, calls: Calls
) -> None:
    web.pages["/"] = Page(b"ok")
    pages = make_page_approver((), is_announced=True)
    runtime = chatting.open(
        f"json://127.0.0.1:{web.port}/", "", pages, **{"gateway.url": "https://tools.example.com"}
    )
    call = calls.start(runtime)
    await eventually(lambda: bool(web.requests))
    text = json.loads(web.requests[0].body)["message"]
    assert text.endswith("Answer it in the dashboard: https://tools.example.com/ui/")
    assert not re.search(r"\b(yes|no) [A-Z2-9]{8}", text)
    (question,) = pages.list_pending()  # it waits, although no page is open yet
    pages.answer(question["id"], "once")
    assert (await call).ok


class Waiting:
    """Approver that waits for its answer, as a person at a terminal."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []
        self.go_on = threading.Event()

    def __call__(self, request: ApprovalRequest) -> Answer:
        self.requests.append(request)
        while not (self.go_on.wait(0.01) or request.withdrawn.is_set()):
            pass
        return Answer.ONCE if self.go_on.is_set() else Answer.DENY


async def test_answer_in_the_chat_withdraws_the_question_of_the_other_approver(
    chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    terminal = Waiting()
    call = calls.start(open_with_telegram(chatting, terminal))
    telegram.write(f"yes {await code_of(telegram)}")
    assert (await call).ok
    assert terminal.requests[0].withdrawn.is_set()


async def test_answer_of_the_other_approver_voids_the_code(
    chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    terminal = Waiting()
    runtime = open_with_telegram(chatting, terminal)
    call = calls.start(runtime)
    code = await code_of(telegram)
    terminal.go_on.set()
    assert (await call).ok
    terminal.go_on.clear()
    second = calls.start(runtime)
    other = await code_of(telegram, 2)
    telegram.write(f"yes {code}")
    await eventually(telegram.is_read)
    assert not second.done()
    telegram.write(f"no {other}")
    assert not (await second).ok
    assert len(chatting.ran) == 1


async def test_other_approver_can_answer_if_the_chat_cannot_be_reached(
    chatting: Chatting, telegram: TelegramServer, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    telegram.web.pages[f"/bot{BOT_TOKEN}/getUpdates"] = Page(b"{}", status=500)
    terminal = Waiting()
    call = calls.start(open_with_telegram(chatting, terminal))
    await eventually(lambda: "was not sent" in caplog.text)
    assert not call.done()
    terminal.go_on.set()
    assert (await call).ok


@pytest.mark.parametrize("answer", [Answer.ONCE, Answer.DENY])
async def test_approver_that_decides_at_once_causes_no_message(
    chatting: Chatting, telegram: TelegramServer, calls: Calls, answer: Answer
) -> None:
    result = await calls.start(open_with_telegram(chatting, lambda _request: answer))
    assert result.ok is (answer is Answer.ONCE)
    assert telegram.web.requests == []


async def test_question_is_not_sent_while_another_process_asks(
    chatting: Chatting, telegram: TelegramServer, calls: Calls
) -> None:
    runtime = open_with_telegram(chatting, None, **{"approval.timeout_seconds": 3})
    file = runtime.config.paths.state_dir / "chat-approval.lock"
    file.parent.mkdir(exist_ok=True)
    open_message_service("me", f"tgram://{BOT_TOKEN}/{OWNER}/")  # slow only the first time
    async with hold_lock(file, 1):
        assert not (await calls.start(runtime)).ok
    assert telegram.web.requests == []


def test_unknown_message_target_stops_the_start(chatting: Chatting) -> None:
    with pytest.raises(ConfigError, match="there is no message target 'you'"):
        chatting.open("", "", None, **{"approval.ask_by": "you"})


def test_project_cannot_choose_who_is_asked(home: Path, tmp_path: Path) -> None:
    (tmp_path / "toolfold.yaml").write_text(
        "approval: {ask_by: evil}\nmessages: {targets: {evil: {url_env: X}}}\n"
    )
    config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(home)}, trusted=True)
    assert config.approval.ask_by == ""


def test_codes_are_long_and_differ() -> None:
    codes = {chat_approver.make_code() for _ in range(1_000)}
    assert len(codes) == 1_000
    assert all(re.fullmatch("[A-HJ-NP-Z2-9]{8}", each) for each in codes)
    assert len(set(chat_approver.CODE_LETTERS)) == 32
