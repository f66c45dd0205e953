"""Log records and tracebacks contain no secrets, whichever library writes them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from toolfold.safety.redaction import HIDDEN, Redaction
from toolfold.safety.redaction.logs import JsonFormatter, RedactingFormatter


def _format(record: logging.LogRecord, secrets: tuple[str, ...] = ()) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(name)s: %(message)s", Redaction(secrets, max_chars=20_000)))
    handler.emit(record)
    return stream.getvalue()


def _record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.getLogger("httpx").makeRecord("httpx", logging.INFO, "f", 1, message, args, exc_info)  # type: ignore[arg-type]


def test_credentials_in_a_logged_url_are_redacted() -> None:
    url = "https://alice:Hunter2xyz@mcp.example.com/mcp?key=Hunter3xyz&page=2"
    formatted = _format(_record('HTTP Request: %s %s "%s"', "POST", url, "HTTP/1.1 200 OK"))
    assert "Hunter" not in formatted
    assert f"https://alice:{HIDDEN}@mcp.example.com/mcp?key={HIDDEN}&page=2" in formatted


def test_secrets_in_a_logged_traceback_are_redacted() -> None:
    try:
        raise ValueError("login with --password Hunter2xyz failed for value-of-the-environment")
    except ValueError:
        formatted = _format(_record("failed", exc_info=sys.exc_info()), ("value-of-the-environment",))
    assert "Traceback" in formatted
    assert "Hunter2xyz" not in formatted
    assert "value-of-the-environment" not in formatted


SCRIPT = """
import threading
from toolfold.cli.app import Invocation
Invocation(["log_level=debug"], None).load_config()
import logging
{statements}
"""


@pytest.mark.parametrize(
    "statements",
    [
        "logging.getLogger('httpx').info('GET https://a:Hunter2xyz@h/x?key=Hunter3xyz')",
        "logging.getLogger('mcp.client').warning('token=Hunter2xyz')",
        "logging.getLogger('toolfold.x').error('failed', exc_info=ValueError('mysql -pHunter2xyz'))",
        "raise ValueError('curl -u a:Hunter2xyz')",
        "def fail(): raise ValueError('Bearer Hunter2xyz')\n"
        "t=threading.Thread(target=fail); t.start(); t.join()",
    ],
)
def test_secrets_in_log_lines_and_uncaught_exceptions_are_redacted_on_standard_error(statements: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statements=statements)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert HIDDEN in done.stderr
    assert "Hunter" not in done.stderr


def test_json_log_contains_one_object_per_line_and_no_secrets() -> None:
    formatter = JsonFormatter(Redaction(("value-of-the-environment",), max_chars=20_000))
    try:
        raise ValueError("failed for value-of-the-environment")
    except ValueError:
        line = formatter.format(_record("first\nsecond value-of-the-environment", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "value-of-the-environment" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("info", "httpx", f"first\nsecond {HIDDEN}")
    assert "ValueError" in entry["exception"]


def test_event_is_logged_as_a_json_object_in_the_json_log_and_other_messages_as_text() -> None:
    formatter = JsonFormatter(Redaction((), max_chars=20_000))
    entry = json.loads(formatter.format(_record("%s", '{"type": "tool_started", "tool": "add"}')))
    assert entry["event"] == {"type": "tool_started", "tool": "add"}
    assert "message" not in entry
    assert json.loads(formatter.format(_record("{broken")))["message"] == "{broken"
