"""The plan an agent keeps while it works: a short ordered list, held in memory for one agent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from toolfold.errors import CallError
from toolfold.model import Json

MOST_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Todo:
    """One step of the plan."""

    id: str
    content: str
    status: str


class TodoList:
    """Written and read as a whole, so that a model always sees the plan it now has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, Todo] = {}

    def export(self) -> list[Json]:
        """Return the plan as JSON data."""
        with self._lock:
            return [asdict(todo) for todo in self._items.values()]

    def restore(self, items: Iterable[Json]) -> None:
        """Continue with an exported plan."""
        with self._lock:
            self._items = {item["id"]: Todo(**item) for item in items}

    def run(self, args: Json) -> Json:
        """Serve one call of the `todo` tool."""
        with self._lock:
            if "todos" in args:
                given = [Todo(**item) for item in args["todos"]]
                self._items = self._written(given, merge=args.get("merge", False))
            return self._answer()

    def _written(self, given: Iterable[Todo], *, merge: bool) -> dict[str, Todo]:
        items = dict(self._items) if merge else {}
        changed: set[str] = set()
        for todo in given:
            if todo.id in changed:
                raise CallError(f"two items have the id {todo.id!r}; nothing was written.")
            changed.add(todo.id)
            items[todo.id] = todo
        if len(items) > MOST_ITEMS:
            raise CallError(
                f"the plan would have {len(items)} items, more than {MOST_ITEMS}; nothing was written."
            )
        return items

    def _answer(self) -> Json:
        counts = Counter(todo.status for todo in self._items.values())
        return {"todos": [asdict(todo) for todo in self._items.values()], "summary": dict(counts)}
