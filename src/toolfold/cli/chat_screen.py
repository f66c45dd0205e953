"""Shows an agent turn in the chat: streamed Markdown, tool calls, number of tools sent, tokens and cost.

`LiveScreen` is for terminals: finished text and calls are printed permanently, and a small area below them
shows running calls and unfinished text. `PlainScreen` prints lines, for pipes and terminals that cannot move
the cursor. Both only show a turn and do not control it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from toolfold.cli.activity import ActivityLine, CallLines, clean_text, format_selection, format_spending
from toolfold.cli.chat_markdown import MarkdownStream, clean_tokens
from toolfold.core.events import (
    Event,
    ModelReplied,
    TextReceived,
    ThinkingReceived,
    ToolsSelected,
    TurnFinished,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.segment import Segment
    from rich.text import Text

REDRAWS_PER_SECOND = 8
RESUME_TIMEOUT_S = 2.0
MIN_CALL_COLUMNS = 20
MAX_HIGHLIGHTED_CHARS = 8_000
"""A longer unfinished Markdown block is drawn as plain text until it is finished."""
_STYLES = {"done": "green", "failed": "red", "running": "dim", "note": "dim"}


class Screen(Protocol):
    """Interface for showing the events of an agent turn."""

    def start_turn(self, session_id: str) -> None: ...

    def show(self, event: Event) -> None: ...

    def end_turn(self) -> None: ...

    def hold_keys(self) -> contextlib.AbstractContextManager[None]:
        """Keep typed keys for the next prompt during a `with` block, without showing them."""

    def pause(self, withdrawn: threading.Event) -> contextlib.AbstractContextManager[None]:
        """Stop drawing during a `with` block, in which a question is asked at the terminal. Thread-safe.

        `withdrawn` is set if the turn ends before the question is answered.
        """


class PlainScreen:
    """Prints the text and tool calls of a turn line by line, without colours and cursor movements."""

    def __init__(self) -> None:
        self._lines = CallLines("")
        self._text = ""
        self._started = 0.0
        self._selection = ""

    def start_turn(self, session_id: str) -> None:
        self._lines, self._text, self._started = CallLines(session_id), "", time.monotonic()

    def show(self, event: Event) -> None:
        if line := self._lines.read(event):
            self._write_line(str(line))
        if not self._lines.is_own(event):
            return
        match event:
            case TextReceived():
                self._add_text(event.text)
            case ModelReplied():
                self._flush_text()
            case ToolsSelected() if (text := format_selection(event)) != self._selection:
                self._selection = text
                self._write_line(f"({text})")
            case TurnFinished():
                self._flush_text()
                for stopped in self._lines.stop_running():
                    self._write_line(str(stopped))
                if event.error:
                    self._write_line(f"error: {clean_text(event.error)}")
                self._write_line(f"({format_spending(event, time.monotonic() - self._started)})")

    def end_turn(self) -> None:
        self._flush_text()

    @contextlib.contextmanager
    def hold_keys(self) -> Iterator[None]:
        yield  # each line of input is a message

    @contextlib.contextmanager
    def pause(self, withdrawn: threading.Event) -> Iterator[None]:  # noqa: ARG002 - nothing is redrawn
        yield

    def _add_text(self, text: str) -> None:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self._write_line(clean_text(line))

    def _flush_text(self) -> None:
        if self._text:
            self._write_line(clean_text(self._text))
        self._text = ""

    def _write_line(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class LiveScreen:
    """Shows a turn at a terminal and redraws the parts that are still changing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.RLock()
        self._held: list[RenderableType] | None = None
        self._is_working = False
        self._question = threading.Event()
        """Setting this event withdraws the question that is shown at the terminal."""
        self._resumed = threading.Event()
        self._resumed.set()
        self._live: Live | None = None
        self._keys = _KeyHolder()
        self._is_holding_keys = False
        self._lines = CallLines("")
        self._markdown = MarkdownStream()
        self._started = 0.0
        self._is_thinking = False
        self._needs_gap = False
        self._selection = ""

    def start_turn(self, session_id: str) -> None:
        self._lines, self._markdown = CallLines(session_id), MarkdownStream()
        self._started, self._needs_gap = time.monotonic(), False
        self._is_working = True
        if self._is_holding_keys:
            self._keys.hold()  # again, because a shell may have changed the terminal after Ctrl-Z
        self._start_live()

    def end_turn(self) -> None:
        self._is_working = False
        if not self._resumed.is_set():
            self._question.set()  # a server may still wait for the answer
        self._resumed.wait(RESUME_TIMEOUT_S)
        with self._lock:
            self._stop_live()

    def show(self, event: Event) -> None:
        if line := self._lines.read(event):
            self._print_line(line)
        if not self._lines.is_own(event):
            return
        self._is_thinking = isinstance(event, ThinkingReceived)
        match event:
            case TextReceived():
                self._print_blocks(self._markdown.add(event.text))
            case ModelReplied():
                self._print_blocks(self._markdown.finish())
            case ToolsSelected() if (text := format_selection(event)) != self._selection:
                self._selection = text
                self._print(_dim(text))
            case TurnFinished():
                self._finish(event)

    def _finish(self, event: TurnFinished) -> None:
        from rich.text import Text

        self._print_blocks(self._markdown.finish())
        for stopped in self._lines.stop_running():
            self._print_line(stopped)
        if event.error:
            self._print(Text(f"error: {clean_text(event.error)}", style="red"))
        self._print(_dim(format_spending(event, time.monotonic() - self._started)))
        self._print("")

    @contextlib.contextmanager
    def hold_keys(self) -> Iterator[None]:
        self._is_holding_keys = True
        self._keys.hold()
        try:
            yield
        finally:
            with self._lock:
                self._is_holding_keys = False
                self._keys.release()

    @contextlib.contextmanager
    def pause(self, withdrawn: threading.Event) -> Iterator[None]:
        with self._lock:
            self._question = withdrawn
            self._resumed.clear()
            self._stop_live()
            self._held = []
        self._keys.release()
        _discard_input()  # an answer typed before the question was shown is no answer to it
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, None
                for each in held or ():
                    self._console.print(each)
                if self._is_holding_keys:
                    self._keys.hold()
                if self._is_working:
                    self._start_live()
                self._resumed.set()

    def _start_live(self) -> None:
        from rich.live import Live

        self._live = Live(
            console=self._console,
            transient=True,
            refresh_per_second=REDRAWS_PER_SECOND,
            get_renderable=lambda: _Lines(self._draw_changing_parts(), max_lines=self._console.height - 2),
        )
        self._live.start()

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw_changing_parts(self) -> list[RenderableType]:
        """Return the unfinished Markdown block and running calls; if there are none, a waiting indicator."""
        from rich.spinner import Spinner

        pending = self._markdown.pending
        parts: list[RenderableType] = []
        if pending.strip():
            parts.append(_draw_markdown(pending) if len(pending) < MAX_HIGHLIGHTED_CHARS else _plain(pending))
        running = self._lines.list_running()
        parts += [Spinner("dots", _format_line(line, self._console.width - 2)) for line in running]
        if not parts:
            parts.append(Spinner("dots", _dim("thinking" if self._is_thinking else "waiting for the model")))
        return parts

    def _print_blocks(self, blocks: list[str]) -> None:
        for block in blocks:
            if self._needs_gap:
                self._print("")
            self._needs_gap = True
            self._print(_draw_markdown(block))

    def _print_line(self, line: ActivityLine) -> None:
        self._print_blocks(self._markdown.finish())  # keeps the order of text and calls
        from rich.padding import Padding
        from rich.text import Text

        self._print(_format_line(line, self._console.width))
        if line.detail:
            self._print(Padding(Text(line.detail, style="dim"), (0, 0, 0, 6)))
        self._needs_gap = True

    def _print(self, renderable: RenderableType) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(renderable)
            else:
                self._console.print(renderable)


class _Lines:
    """Rich renderable that drops blank lines at start and end, and shows at most the last `max_lines`."""

    def __init__(self, parts: list[RenderableType], *, max_lines: int | None = None) -> None:
        self._parts, self._max_lines = parts, max_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.console import Group
        from rich.segment import Segment

        lines = console.render_lines(Group(*self._parts), options, pad=False)
        while lines and _is_blank(lines[-1]):
            lines.pop()
        while lines and _is_blank(lines[0]):
            lines.pop(0)
        for number, line in enumerate(lines[-self._max_lines :] if self._max_lines else lines):
            if number:
                yield Segment.line()
            yield from line
        yield Segment.line()


def _is_blank(line: list[Segment]) -> bool:
    return not any(segment.text.strip() or (segment.style and segment.style.bgcolor) for segment in line)


class _KeyHolder:
    """Makes the terminal buffer typed keys, without showing them, until a prompt reads them.

    Otherwise the terminal would show the keys in the middle of the output, and turn Enter into Ctrl-J, which
    the prompt reads as a new line of the message. Ctrl-C still sends its signal.
    """

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def hold(self) -> None:
        with _ignore_terminal_errors():
            import termios

            before = termios.tcgetattr(sys.stdin.fileno())
            changed = list(before)
            changed[0] &= ~termios.ICRNL
            changed[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, changed)
            self._before = self._before or before

    def release(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            with _ignore_terminal_errors():
                import termios

                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


@contextlib.contextmanager
def _ignore_terminal_errors() -> Iterator[None]:
    """Ignore errors raised because standard input is not a terminal or the system has no `termios`."""
    try:
        yield
    except (ImportError, OSError, ValueError):
        return
    except Exception as error:
        if type(error).__module__ != "termios":  # its errors are no OSError
            raise


def _discard_input() -> None:
    with _ignore_terminal_errors():
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _format_line(line: ActivityLine, columns: int) -> Text:
    """Return an activity line for the terminal; a long call is cut so that its outcome fits on the line."""
    from rich.text import Text

    text = Text("  ↳ " if line.by_sub_agent else "  ")
    outcome = Text(line.outcome, style=_STYLES[line.state])
    call = Text(line.text)
    if line.outcome:
        room = columns - text.cell_len - outcome.cell_len - 2
        call.truncate(max(MIN_CALL_COLUMNS, room), overflow="ellipsis")
    return text + call + Text(" ") + outcome


def _draw_markdown(text: str) -> RenderableType:
    from rich.markdown import Markdown

    markdown = Markdown(text, hyperlinks=False)  # a link shows its address
    clean_tokens(markdown.parsed)
    return _Lines([markdown])


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text[-MAX_HIGHLIGHTED_CHARS:])


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim")
