"""Read messages to a Telegram bot with `getUpdates`. A reply's sender is the number of a Telegram user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolfold.runtime.chat.replies import RepliesUnavailable, Reply, fetch, parse_json

if TYPE_CHECKING:
    import httpx2

MAX_UPDATES = 20
LONG_POLL_S = 20
_NOT_OWN_WORDS = ("forward_origin", "forward_date", "forward_from", "sender_chat", "via_bot")
"""Fields of messages that somebody else wrote."""


class TelegramReader:
    """Reads messages to the bot of a message target, from its own chats and from private ones."""

    pause_s = 0.2

    def __init__(self, service: Any, sender: str) -> None:
        if not sender.isdecimal():
            raise RepliesUnavailable("`answers_from` is not the number of a Telegram user")
        self._url = f"{service.notify_url}{service.bot_token}/getUpdates"
        self._chats = {str(chat) for chat, _topic in service.targets}
        self._offset: int | None = None

    async def read(self, client: httpx2.AsyncClient) -> list[Reply]:
        is_first = self._offset is None
        query = {
            "offset": -1 if is_first else self._offset,  # -1: only the newest
            "timeout": 0 if is_first else LONG_POLL_S,
            "limit": MAX_UPDATES,
            "allowed_updates": ["message"],
        }
        answer = parse_json(await fetch(client, "POST", self._url, json=query))
        updates = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(updates, list):
            raise RepliesUnavailable("the response is not one of Telegram's")
        known = [each for each in updates if isinstance(each, dict) and type(each.get("update_id")) is int]
        self._offset = max((each["update_id"] + 1 for each in known), default=self._offset or 0)
        replies = (self._read_message(each.get("message")) for each in known)
        return [each for each in replies if each is not None]

    def _read_message(self, message: Any) -> Reply | None:
        """Return a message that its sender wrote in a chat of the target or in a private one."""
        if not isinstance(message, dict) or any(each in message for each in _NOT_OWN_WORDS):
            return None
        sender, chat, text = message.get("from"), message.get("chat"), message.get("text")
        if not (isinstance(sender, dict) and isinstance(chat, dict) and isinstance(text, str)):
            return None
        user, place = str(sender.get("id")), str(chat.get("id"))
        return Reply(user, text) if place == user or place in self._chats else None
