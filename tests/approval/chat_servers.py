"""Servers on this machine that speak the APIs of Telegram bots and of ntfy."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.internet.web_server import Page, Request, WebServer

BOT_TOKEN = "123456789:" + "a" * 32
OWNER = 4711


class TelegramServer:
    """Bot API with one bot: `sendMessage` and `getUpdates` with offsets and long polls."""

    def __init__(self, web: WebServer) -> None:
        self.web, self.sent = web, list[str]()
        self.broken: Callable[[], Page | None] = lambda: None
        """Returns another answer to `getUpdates` than the real one."""
        self._updates, self._ids, self._changed = list[Any](), itertools.count(100), threading.Condition()
        web.pages[f"/bot{BOT_TOKEN}/sendMessage"] = self._send
        web.pages[f"/bot{BOT_TOKEN}/getUpdates"] = self._get_updates

    def write(self, text: str, user: int = OWNER, chat: int = OWNER, **fields: Any) -> None:
        """Let a user write a message to the bot."""
        message = {"from": {"id": user}, "chat": {"id": chat}, "text": text, **fields}
        with self._changed:
            self._updates.append({"update_id": next(self._ids), "message": message})
            self._changed.notify_all()

    def is_read(self) -> bool:
        """Return True if all messages were read and confirmed."""
        with self._changed:
            return not self._updates

    def _send(self, request: Request) -> Page:
        self.sent.append(json.loads(request.body)["text"])
        return _json_page({"ok": True, "result": {"message_id": len(self.sent)}})

    def _get_updates(self, request: Request) -> Page:
        if page := self.broken():
            return page
        query = json.loads(request.body)
        with self._changed:
            if query["offset"] < 0:
                del self._updates[: query["offset"]]
            else:
                self._updates = [each for each in self._updates if each["update_id"] >= query["offset"]]
            for _ in range(query["timeout"] * 20):
                if self._updates or self.web.closing.is_set():
                    break
                self._changed.wait(0.05)
            return _json_page({"ok": True, "result": self._updates[: query["limit"]]})


class NtfyServer:
    """Server with a user `ana`, who alone can write in the topic `answers`; everybody can in `questions`."""

    def __init__(self, web: WebServer) -> None:
        self.web, self.sent = web, list[str]()
        self._entries, self._ids = list[tuple[str, bytes]](), itertools.count(1)
        web.pages["/"] = self._publish
        for topic in ("questions", "answers"):
            web.pages[f"/{topic}/json"] = self._poll

    def write(self, text: str, topic: str = "answers", raw: bytes | None = None) -> None:
        """Publish a message; `raw` is its line in the answer to a poll, if that is invalid."""
        number = f"m{next(self._ids)}"
        entry = {"id": number, "time": 1, "event": "message", "topic": topic, "message": text}
        self._entries.append((number, json.dumps(entry).encode() if raw is None else raw))

    def _publish(self, request: Request) -> Page:
        posted = json.loads(request.body)
        self.sent.append(posted["message"])
        self.write(posted["message"], posted["topic"])
        return _json_page({"id": "x"})

    def _poll(self, request: Request) -> Page:
        if request.headers.get("authorization") != "Basic " + base64.b64encode(b"ana:pass-of-ana").decode():
            return Page(b'{"code":40301,"error":"forbidden"}', status=403)
        parts = urlsplit(request.path)
        topic, since = parts.path.split("/")[1], parse_qs(parts.query)["since"][0]
        ids = [number for number, _ in self._entries]
        start = ids.index(since) + 1 if since in ids else 0
        lines = [line for _, line in self._entries[start:] if f'"topic": "{topic}"'.encode() in line]
        return Page(b"\n".join(lines) + b"\n", media_type="application/x-ndjson")


def _json_page(value: object) -> Page:
    return Page(json.dumps(value).encode(), media_type="application/json")
