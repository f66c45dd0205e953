"""Read the messages of an ntfy topic.

ntfy does not tell who has published a message, so the sender of a reply is its topic: a protected one in
which only the user can write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolfold.runtime.chat.replies import RepliesUnavailable, Reply, fetch, parse_json

if TYPE_CHECKING:
    import httpx2

OLDEST = "10m"
"""How far the first read looks back: to know which messages are older than a question."""


class NtfyReader:
    """Reads the topic for answers at the server of a message target, with the credentials of its URL."""

    pause_s = 3.0

    def __init__(self, service: Any, sender: str) -> None:
        if service.mode != "private" or not (service.token or service.user):
            raise RepliesUnavailable(
                "answers by ntfy need a protected topic: the URL has no user or access token for the server"
            )
        if sender in service.topics:
            raise RepliesUnavailable(
                "`answers_from` must be another topic than those of the URL, in which tools can write"
            )
        scheme = "https" if service.secure else "http"
        port = f":{service.port}" if service.port else ""
        self._url = f"{scheme}://{service.host}{port}/{sender}/json"
        self._topic, self._since, self._seen = sender, OLDEST, frozenset[str]()
        self._options: dict[str, Any] = (
            {"auth": (service.user, service.password or "")}
            if service.auth == "basic"
            else {"auth": _BearerToken(service.token)}
        )

    async def read(self, client: httpx2.AsyncClient) -> list[Reply]:
        query = {"poll": "1", "since": self._since}
        body = await fetch(client, "GET", self._url, params=query, **self._options)
        entries = [parse_json(line) for line in body.splitlines()]
        messages = {
            entry["id"]: entry
            for entry in entries
            if isinstance(entry, dict)
            and entry.get("event") == "message"
            and isinstance(entry.get("id"), str)
        }
        new = [entry for number, entry in messages.items() if number not in self._seen]
        if messages:
            self._since, self._seen = [*messages][-1], frozenset(messages)
        return [
            Reply(str(each.get("topic")), each["message"])
            for each in new
            if isinstance(each.get("message"), str)
        ]


class _BearerToken:
    """Authorization of a request by an access token, which is kept out of the options that are logged."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: httpx2.Request) -> httpx2.Request:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request
