"""The messages of one agent session, in memory and in the session store.

Whatever happens (an interruption, a crash, a kill), the history stays valid: every tool call has a result,
and a call whose outcome is unknown says so. Knows nothing of models and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolfold.agent.store_thread import StoreThread
from toolfold.core.types import Json, ToolCall, ToolResult
from toolfold.models import Dialect, is_notice, is_user_message
from toolfold.models.dialect import NOTICE_OPENING
from toolfold.models.reply import Reply
from toolfold.runtime.results import render
from toolfold.state.store import CallRecord, MessageRecord, SessionRecord, SessionStore

UNKNOWN_OUTCOME = (
    "The run was interrupted while this tool was working. It may have completed, partly or fully:"
    " check the state before you call it again."
)
NOT_RUN = "The run was interrupted before this tool was called. It was not run."

RenderResults = Callable[[Sequence[ToolResult]], list[Json]]


class SessionHistory:
    """History of a session: the messages that are part of the prompt.

    Every method stores its change, and returns after that: what is in the history survives a crash.
    """

    def __init__(self, store: SessionStore, record: SessionRecord, dialect: Dialect) -> None:
        self._store, self.record, self.dialect = store, record, dialect
        self.thread = StoreThread(store)
        """Runs all changes of the stored session while the event loop goes on."""
        self._entries = store.load_messages(record.id)
        self._repair()

    @property
    def messages(self) -> list[Json]:
        """Return the session's messages for the model, in the provider's format."""
        return [entry.body for entry in self._entries]

    @property
    def entries(self) -> Sequence[MessageRecord]:
        return self._entries

    @property
    def turn(self) -> int:
        """Return the number of the newest turn."""
        return max((entry.turn for entry in self._entries), default=self.record.turns)

    @property
    def first_text(self) -> str:
        """Return the text of the user's first message."""
        return next((entry.text for entry in self._entries if entry.role == "user"), "")

    async def add_user_message(self, text: str) -> int:
        """Start a turn with a user message, and return the turn's number."""
        turn = self.turn + 1
        await self._append([self.dialect.user_message(text)], turn)
        return turn

    async def add_notice(self, text: str) -> None:
        """Append a message of the runtime to the model, such as a request to continue a cut answer."""
        await self._append([self.dialect.user_message(f"{NOTICE_OPENING} {text}")], self.turn)

    def save_draft(self, text: str) -> None:
        """Store the answer text received so far. Must be called in the session's store thread."""
        self._store.save_draft(self.record.id, text)

    async def add_reply(self, reply: Reply, *, state: Json | None = None) -> None:
        """Append a model's complete reply, which replaces the draft stored while it was streaming."""
        await self._append(list(reply.messages), self.turn, state=state, thinking=reply.unsent_thinking)

    async def start_calls(self, calls: Sequence[ToolCall]) -> None:
        """Record that the tool calls of a reply are about to run."""
        names = {call.id: call.name for call in calls}
        await self.thread.run(lambda: self._store.start_calls(self.record.id, names))

    def keep_result(self, result: ToolResult) -> None:
        """Store one tool result immediately, because other calls of the same reply may still be running.

        If it cannot be stored, the next change of the history reports that.
        """
        kept = {"name": result.name, "text": result.text, "error": result.error}
        self.thread.submit(lambda: self._store.finish_call(self.record.id, result.call_id, kept))

    async def add_results(
        self, results: Sequence[ToolResult], rendered: Sequence[Json], *, state: Json | None = None
    ) -> None:
        """Append the messages with the results of all tool calls of a reply."""
        await self._append(
            list(rendered), self.turn, state=state, finished=[each.call_id for each in results]
        )

    async def complete_calls(self, results: Mapping[str, ToolResult], render_results: RenderResults) -> None:
        """Add a result for every tool call that has none in the history: the stored result, or an error."""
        open_calls = self._find_open_calls()
        if not open_calls:
            return
        stored = await self.thread.run(lambda: self._store.load_calls(self.record.id))
        completed = _complete(open_calls, stored, results)
        await self.add_results(completed, render_results(completed))

    def undo_turn(self) -> str:
        """Remove the newest turn from the prompt and return the user message that started it."""
        turn = self.turn
        undone = [entry for entry in self._entries if entry.turn == turn]
        if not undone:
            return ""
        self._store.replace_messages(self.record.id, [entry.number for entry in undone], "undone")
        self._entries = [entry for entry in self._entries if entry.turn != turn]
        return next((entry.text for entry in undone if entry.role == "user"), "")

    async def replace_oldest(self, count: int, summary: str) -> None:
        """Replace the oldest messages of the prompt by a summary."""
        old = self._entries[:count]
        turn = old[-1].turn if old else 0
        record = self._to_record(self.dialect.user_message(summary), turn)
        numbers = [entry.number for entry in old]

        def replace_stored() -> list[MessageRecord]:
            self._store.replace_messages(self.record.id, numbers, "compressed", summary=record)
            return self._store.load_messages(self.record.id)

        await self.thread.run(replace_stored, self._set_entries)

    def _set_entries(self, entries: list[MessageRecord]) -> None:
        self._entries = entries

    def _repair(self) -> None:
        """Repair a history that ended in the middle of a turn."""
        if draft := self._store.load_draft(self.record.id):
            self._store_messages([self.dialect.assistant_message(draft)], self.turn)
        if open_calls := self._find_open_calls():
            completed = _complete(open_calls, self._store.load_calls(self.record.id), {})
            rendered = self.dialect.render_results(completed)
            self._store_messages(rendered, self.turn, finished=[each.call_id for each in completed])

    def _find_open_calls(self) -> list[tuple[str, str]]:
        messages = self.messages
        answered = self.dialect.find_result_ids(messages)
        return [
            (call_id, name) for call_id, name in self.dialect.find_calls(messages) if call_id not in answered
        ]

    async def _append(
        self,
        messages: Sequence[Json],
        turn: int,
        *,
        state: Json | None = None,
        finished: Sequence[str] = (),
        thinking: str = "",
    ) -> None:
        """Store messages and add them to the history. `thinking` is only stored, never sent to the model."""
        records = self._to_records(messages, turn, thinking)
        await self.thread.run(
            lambda: self._store.append_messages(
                self.record.id, records, state=state, finished_calls=finished
            ),
            lambda numbers: self._add_entries(records, numbers),
        )

    def _store_messages(self, messages: Sequence[Json], turn: int, *, finished: Sequence[str] = ()) -> None:
        """Write messages to the database and add them to this history synchronously."""
        records = self._to_records(messages, turn)
        numbers = self._store.append_messages(self.record.id, records, finished_calls=finished)
        self._add_entries(records, numbers)

    def _to_records(self, messages: Sequence[Json], turn: int, thinking: str = "") -> list[MessageRecord]:
        records = [self._to_record(message, turn) for message in messages]
        if thinking:
            shown = MessageRecord(body={}, role="thinking", text=thinking, turn=turn, state="unsent")
            records.insert(0, shown)
        return records

    def _add_entries(self, records: Sequence[MessageRecord], numbers: Sequence[float]) -> None:
        numbered = [replace(each, number=at) for each, at in zip(records, numbers, strict=True)]
        self._entries = [*self._entries, *(each for each in numbered if each.state == "active")]

    def _to_record(self, message: Json, turn: int) -> MessageRecord:
        if is_user_message(message):
            role = "user"
        elif is_notice(message):
            role = "notice"
        else:
            role = "tool" if self.dialect.find_result_ids([message]) else "assistant"
        return MessageRecord(body=message, role=role, text=self.dialect.find_text(message), turn=turn)


def _complete(
    open_calls: Sequence[tuple[str, str]], stored: Sequence[CallRecord], results: Mapping[str, ToolResult]
) -> list[ToolResult]:
    """Return a result for each tool call that has none in the history: the stored result, or an error."""
    started = {record.call_id: record for record in stored}
    completed = []
    for call_id, name in open_calls:
        record = started.get(call_id)
        if call_id in results:
            completed.append(results[call_id])
        elif record is not None and record.result is not None:
            completed.append(ToolResult(call_id=call_id, **record.result))
        else:
            problem = NOT_RUN if record is None else UNKNOWN_OUTCOME
            text = render({"error": problem})
            completed.append(ToolResult(call_id=call_id, name=name, text=text, error=problem))
    return completed
