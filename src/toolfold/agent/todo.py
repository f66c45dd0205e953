"""The plan of an agent: a short ordered list of steps, which is kept in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from toolfold.core.errors import CallError
from toolfold.core.types import Json

MAX_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Todo:
    """One step of an agent's plan."""

    id: str
    content: str
    status: str


class TodoList:
    """To-do list (plan) of an agent; each call of the `todo` tool returns the whole list."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[str, Todo] = {}

    def export(self) -> list[Json]:
        """Return the plan as JSON data."""
        with self._lock:
            return [asdict(todo) for todo in self._items.values()]

    def restore(self, items: Iterable[Json]) -> None:
        """Replace the plan by data returned by `export`."""
        with self._lock:
            self._items = {item["id"]: Todo(**item) for item in items}

    def run(self, args: Json) -> Json:
        """Execute one call of the `todo` tool."""
        with self._lock:
            if "todos" in args:
                new_items = [Todo(**item) for item in args["todos"]]
                self._items = self._merge_items(new_items, merge=args.get("merge", False))
            return self._build_answer()

    def _merge_items(self, new_items: Iterable[Todo], *, merge: bool) -> dict[str, Todo]:
        items = dict(self._items) if merge else {}
        changed: set[str] = set()
        for todo in new_items:
            if todo.id in changed:
                raise CallError(f"Two items have the id {todo.id!r}. Nothing was written.")
            changed.add(todo.id)
            items[todo.id] = todo
        if len(items) > MAX_ITEMS:
            raise CallError(
                f"The plan would have {len(items)} items; the maximum is {MAX_ITEMS}. Nothing was written."
            )
        return items

    def _build_answer(self) -> Json:
        counts = Counter(todo.status for todo in self._items.values())
        return {"todos": [asdict(todo) for todo in self._items.values()], "summary": dict(counts)}
