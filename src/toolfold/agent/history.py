"""The messages of one agent session, in memory and in the session store.

Whatever happens (an interruption, a crash, a kill), the history stays valid: every tool call has a result,
and a call whose outcome is unknown says so. Knows nothing of models and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolfold.model import Json, ToolCall, ToolResult
from toolfold.providers import Dialect, is_user_message
from toolfold.providers.reply import Reply
from toolfold.results import render
from toolfold.store import MessageRecord, SessionRecord, SessionStore

UNKNOWN_OUTCOME = (
    "The run was interrupted while this tool was working. It may have completed, partly or fully:"
    " check the state before you call it again."
)
NOT_RUN = "The run was interrupted before this tool was called. It was not run."

RenderResults = Callable[[Sequence[ToolResult]], list[Json]]


class SessionHistory:
    """The messages of a session that are part of the prompt. Every method stores its change at once."""

    def __init__(self, store: SessionStore, record: SessionRecord, dialect: Dialect) -> None:
        self._store, self.record, self.dialect = store, record, dialect
        self._entries = store.load_messages(record.id)
        self._draft = ""
        self._repair()

    @property
    def messages(self) -> list[Json]:
        """Return the session's messages as they are sent to the model, in the provider's format."""
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

    def add_user_message(self, text: str) -> int:
        """Start a turn with a user message, and return the turn's number."""
        turn = self.turn + 1
        self._append([self.dialect.user_message(text)], turn)
        return turn

    def save_draft(self, text: str) -> None:
        """Store the part of an answer that has been received, before it is shown."""
        self._draft = text
        self._store.save_draft(self.record.id, text)

    def add_reply(self, reply: Reply, *, state: Json | None = None) -> None:
        """Append a model's complete reply; it replaces the draft that was stored while it arrived."""
        self._append(list(reply.messages), self.turn, state=state, thinking=reply.unsent_thinking)
        self._draft = ""

    def start_calls(self, calls: Sequence[ToolCall]) -> None:
        """Record that the tool calls of a reply are about to run."""
        self._store.start_calls(self.record.id, {call.id: call.name for call in calls})

    def keep_result(self, result: ToolResult) -> None:
        """Store one tool result at once; other calls of the same reply may still be running."""
        kept = {"name": result.name, "text": result.text, "error": result.error}
        self._store.finish_call(self.record.id, result.call_id, kept)

    def add_results(
        self, results: Sequence[ToolResult], rendered: Sequence[Json], *, state: Json | None = None
    ) -> None:
        """Append the messages with the results of all tool calls of a reply."""
        self._append(list(rendered), self.turn, state=state, finished=[each.call_id for each in results])

    def complete_calls(self, results: Mapping[str, ToolResult], render_results: RenderResults) -> None:
        """Give every unfinished tool call a result: a known one, or an error that says it was interrupted."""
        open_calls = self._find_open_calls()
        if not open_calls:
            return
        started = {record.call_id: record for record in self._store.load_calls(self.record.id)}
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
        self.add_results(completed, render_results(completed))

    def undo_turn(self) -> str:
        """Remove the newest turn from the prompt and return the user message that started it."""
        turn = self.turn
        undone = [entry for entry in self._entries if entry.turn == turn]
        if not undone:
            return ""
        self._store.replace_messages(self.record.id, [entry.number for entry in undone], "undone")
        self._entries = [entry for entry in self._entries if entry.turn != turn]
        return next((entry.text for entry in undone if entry.role == "user"), "")

    def replace_oldest(self, count: int, summary: str) -> None:
        """Replace the oldest messages of the prompt by a summary."""
        old = self._entries[:count]
        turn = old[-1].turn if old else 0
        record = self._to_record(self.dialect.user_message(summary), turn)
        self._store.replace_messages(
            self.record.id, [entry.number for entry in old], "compressed", summary=record
        )
        self._entries = self._store.load_messages(self.record.id)

    def _repair(self) -> None:
        """Make the history valid again if it ended in the middle of a turn."""
        if draft := self._store.load_draft(self.record.id):
            self._append([self.dialect.assistant_message(draft)], self.turn)
        self.complete_calls({}, lambda results: self.dialect.render_results(results))

    def _find_open_calls(self) -> list[tuple[str, str]]:
        messages = self.messages
        answered = self.dialect.find_result_ids(messages)
        return [
            (call_id, name) for call_id, name in self.dialect.find_calls(messages) if call_id not in answered
        ]

    def _append(
        self,
        messages: Sequence[Json],
        turn: int,
        *,
        state: Json | None = None,
        finished: Sequence[str] = (),
        thinking: str = "",
    ) -> None:
        """Store messages and add them to the history. `thinking` is only stored: it cannot be sent back."""
        records = [self._to_record(message, turn) for message in messages]
        if thinking:
            shown = MessageRecord(body={}, role="thinking", text=thinking, turn=turn, state="unsent")
            records.insert(0, shown)
        numbers = self._store.append_messages(self.record.id, records, state=state, finished_calls=finished)
        numbered = [replace(each, number=at) for each, at in zip(records, numbers, strict=True)]
        self._entries = [*self._entries, *(each for each in numbered if each.state == "active")]

    def _to_record(self, message: Json, turn: int) -> MessageRecord:
        is_user = is_user_message(message)
        role = "user" if is_user else "tool" if self.dialect.find_result_ids([message]) else "assistant"
        return MessageRecord(body=message, role=role, text=self.dialect.find_text(message), turn=turn)
