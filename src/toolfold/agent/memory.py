"""Facts remembered by the agent across sessions, in a file that the user can edit.

One fact per line, each starting with "- ". The file is read when a session starts and becomes part of
its system prompt; changes during the session are stored at once and appear in the next one, so that the
prompt prefix stays the same.
"""

from __future__ import annotations

import threading
from pathlib import Path

from toolfold.config.atomic import lock_directory, make_private_directory, replace_file
from toolfold.core.errors import CallError
from toolfold.core.types import Json

FILE_NAME = "memory.md"
MAX_FACT_CHARS = 500
_HEADER = "# What the agent remembers. One fact per line; edit freely.\n"


class Memory:
    """The remembered facts of one user."""

    def __init__(self, file: Path, *, max_chars: int) -> None:
        self._file, self._max_chars = file, max_chars
        self._lock = threading.Lock()

    def read_facts(self) -> list[str]:
        """Return the remembered facts, oldest first."""
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines = (line.strip() for line in text.splitlines())
        return [line.removeprefix("- ").strip() for line in lines if line.startswith("- ")]

    def run(self, args: Json) -> Json:
        """Execute one call of the `memory` tool."""
        make_private_directory(self._file.parent)
        with self._lock, lock_directory(self._file.parent):  # other sessions write the same file
            facts = self.read_facts()
            match args["action"]:
                case "add":
                    facts.append(_require_fact(args))
                case "replace":
                    facts[_find_fact(facts, args)] = _require_fact(args)
                case "remove":
                    del facts[_find_fact(facts, args)]
            self._write_facts(facts)
            return {"facts": facts, "characters_left": self._max_chars - sum(map(len, facts))}

    def _write_facts(self, facts: list[str]) -> None:
        size = sum(map(len, facts))
        if size > self._max_chars:
            raise CallError(
                f"the memory would have {size:,} characters; the limit is {self._max_chars:,}. Nothing was"
                f" written."
                " Replace or remove a fact first."
            )
        text = _HEADER + "".join(f"- {fact}\n" for fact in facts)
        replace_file(self._file, text.encode(), mode=0o600)


def _require_fact(args: Json) -> str:
    fact = " ".join(str(args.get("content") or "").split())
    if not fact:
        raise CallError("`content` is missing: give the fact to remember. Nothing was written.")
    if len(fact) > MAX_FACT_CHARS:
        raise CallError(
            f"the fact has {len(fact)} characters; the limit is {MAX_FACT_CHARS}. Nothing was written."
        )
    return fact


def _find_fact(facts: list[str], args: Json) -> int:
    wanted = " ".join(str(args.get("old") or "").split()).casefold()
    if not wanted:
        raise CallError(
            "`old` is missing: give a part of the fact that you want to change. Nothing was written."
        )
    found = [index for index, fact in enumerate(facts) if wanted in fact.casefold()]
    if len(found) == 1:
        return found[0]
    raise CallError(
        f"`old` must occur in exactly one fact, but {len(found)} facts contain {wanted!r}. Nothing was "
        "written.",
        facts=facts,
    )
