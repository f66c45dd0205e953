"""Record which replies stored at a provider belong to which user, and how to continue them.

Kept in memory only: a reply that was forgotten cannot be continued by its id with a key that users share.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from toolfold.core.types import Json

MAX_OWNERS = 10_000
MAX_REPLIES_OF_OWNER = 1_000


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply stored by the provider: its id, and the search results hidden from the client."""

    client_id: str
    """The id under which the client knows it."""
    id: str
    results: list[Json]
    """Results of its searches, which the request that continues it must contain."""


class StoredReplies:
    """Stored replies of all users, by the provider and the id that the client knows."""

    def __init__(self) -> None:
        self._by_owner: OrderedDict[str, OrderedDict[tuple[str, str], StoredReply]] = OrderedDict()

    def add(self, owner: str, provider: str, reply: StoredReply) -> None:
        """Record a reply; the oldest ones of its owner are forgotten, and owners without recent replies."""
        replies = self._by_owner.setdefault(owner, OrderedDict())
        self._by_owner.move_to_end(owner)
        replies[provider, reply.client_id] = reply
        replies.move_to_end((provider, reply.client_id))
        if len(replies) > MAX_REPLIES_OF_OWNER:
            replies.popitem(last=False)
        if len(self._by_owner) > MAX_OWNERS:
            self._by_owner.popitem(last=False)

    def find(self, owner: str, provider: str, client_id: str) -> StoredReply | None:
        """Return the owner's reply with this id; None if it is not known."""
        replies = self._by_owner.get(owner)
        return replies.get((provider, client_id)) if replies is not None else None
