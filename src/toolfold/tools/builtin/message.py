"""The `messaging` toolset: send a message to a target configured by the user.

A model chooses a target by its name and never sees the target's URL, which contains passwords. Apprise, an
optional package, delivers the message. Every message needs approval, because it reaches other people.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolfold.config.web_settings import MessagesSettings
from toolfold.core.errors import CallError
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.files import Workspace

SOURCE = Source("builtin", "message")
MAX_TEXT_CHARS = 10_000
MAX_TITLE_CHARS = 200
MAX_FILES = 5
MAX_FILE_BYTES = 20_000_000
OVERHEAD_TIMEOUT_S = 30.0


class MessageFailed(CallError):
    """Raised when a message was not delivered, or `send_message` is not configured."""


def tools(services: Services) -> list[Tool]:
    """Return the tool `send_message`."""
    sender = MessageSender(services.messages, services.environment, services.outside_text, services.workspace)
    schema = _build_schema(services.messages)
    return [
        build_builtin_tool(
            name="send_message",
            toolset="messaging",
            schema=schema,
            handler=sender.send,
            check_fn=sender.check,
            emoji="✉️",
            effects=(Effect.SEND, Effect.NETWORK),
            judged_as=dict.fromkeys(schema["parameters"]["properties"], Meaning.NOTE),
            precheck=sender.check_call,
            timeout=services.messages.timeout_seconds + OVERHEAD_TIMEOUT_S,
            synonyms=("notify", "email", "chat", "tell", "post", "text"),
            source=SOURCE,
        )
    ]


def _build_schema(settings: MessagesSettings) -> Json:
    """Return the schema of `send_message` with the names and descriptions of the configured targets."""
    described = "; ".join(
        f"{name}: {target.description}" for name, target in settings.targets.items() if target.description
    )
    target: Json = {"type": "string", "description": described or "Name of a configured target."}
    if settings.targets:
        target["enum"] = list(settings.targets)
    return {
        "description": "Send a message to a person or channel that the user has configured.",
        "parameters": {
            "type": "object",
            "properties": {
                "target": target,
                "text": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARS},
                "title": {"type": "string", "maxLength": MAX_TITLE_CHARS},
                "files": {
                    "type": "array",
                    "items": {"type": "string"},
                    "maxItems": MAX_FILES,
                    "description": "Files of the workspace to attach.",
                },
            },
            "required": ["target", "text"],
            "additionalProperties": False,
        },
    }


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MessageSender:
    """Handler and availability check of the tool `send_message`."""

    settings: MessagesSettings
    environment: Mapping[str, str]
    outside_text: OutsideText
    workspace: Workspace

    def check(self) -> bool:
        """Return True if a message target can be used. Raises MessageFailed with the reason if not."""
        if not self.settings.targets:
            raise MessageFailed(
                "No message recipient is configured. Add one to the setting messages.targets."
            )
        if find_spec("apprise") is None:
            raise MessageFailed(
                "The package apprise is missing. Install it: pip install 'toolfold[message]'."
            )
        variables = self.settings.url_variables()
        if not any(self.environment.get(variable) for variable in variables):
            raise MessageFailed(
                f"No message target has a URL: set the environment variable {' or '.join(variables)}."
            )
        return True

    def check_call(self, args: Json, context: CallContext) -> None:
        """Raise an error if the message may not be sent to the target, or a file may not be attached."""
        self._find_url(args)
        for path in args.get("files", ()):
            self._read_file(path, context)

    def send(self, args: Json, context: CallContext) -> Json:
        name, text, title = args["target"], args["text"], args.get("title", "")
        url = self._find_url(args)
        with tempfile.TemporaryDirectory() as directory:
            # Copies, so that exactly the bytes that were checked are sent.
            attached = []
            for number, path in enumerate(args.get("files", ())):
                copy = Path(directory) / str(number) / Path(path).name
                copy.parent.mkdir()
                copy.write_bytes(self._read_file(path, context))
                attached.append(str(copy))
            service = open_message_service(name, url)
            deliver_message(name, service, text, title, attached, timeout_s=self.settings.timeout_seconds)
        return {"sent": True, "target": name}

    def _read_file(self, path: str, context: CallContext) -> bytes:
        """Return a file to attach. Raises an error if it is unreadable, too large or contains a secret."""
        found = self.workspace.resolve(path, context.readable)
        with self.workspace.open_for_reading(found, context.readable) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise MessageFailed(f"{path!r} has more than {MAX_FILE_BYTES:,} bytes, so nothing was sent.")
        self.outside_text.require_no_secret(data.decode(errors="replace"), f"The file {path!r}")
        return data

    def _find_url(self, args: Json) -> str:
        """Return the URL of the message target. Raises an error if the message may not be sent to it."""
        name = args["target"]
        self.outside_text.require_no_secret(f"{args.get('title', '')}\n{args['text']}", "The message")
        target = self.settings.targets.get(name)
        if target is None:
            known = ", ".join(self.settings.targets)
            raise MessageFailed(f"There is no message target {name!r}. The configured targets are: {known}.")
        url = self.environment.get(target.url_env, "").strip()
        if not url:
            raise MessageFailed(
                f"The target {name!r} has no URL: the environment variable {target.url_env} is not set."
            )
        return url


def open_message_service(name: str, url: str) -> Any:
    """Return Apprise's service for the URL of a message target. Raises MessageFailed if it is invalid."""
    import apprise

    with _silence_log():
        service = apprise.Apprise.instantiate(url, asset=apprise.AppriseAsset(async_mode=False))
    if service is None:
        raise MessageFailed(f"The URL of the message target {name!r} is not a valid Apprise URL.")
    return service


def deliver_message(
    name: str, service: Any, text: str, title: str = "", files: Sequence[str] = (), *, timeout_s: float
) -> None:
    """Send a message by the service of a target. Raises MessageFailed if it is not delivered."""
    import apprise

    if files and not service.attachment_support:
        raise MessageFailed(
            f"Nothing was sent: the service of the target {name!r} does not accept files. Send the"
            " message without files."
        )
    with _silence_log():
        sender = apprise.Apprise(service, asset=service.asset)
        sent = sender.notify(
            body=text,
            title=title,
            body_format=apprise.NotifyFormat.TEXT,
            attach=list(files) or None,
            timeout=timeout_s,
        )
    if not sent:
        raise MessageFailed(
            f"The message to {name!r} was not delivered: the service refused it or did not answer."
        )


@contextlib.contextmanager
def _silence_log() -> Iterator[None]:
    """Suppress the log of Apprise, which contains the URLs of targets."""

    def drop_record(_record: logging.LogRecord) -> bool:
        return False

    log = logging.getLogger("apprise")
    log.addFilter(drop_record)
    try:
        yield
    finally:
        log.removeFilter(drop_record)
