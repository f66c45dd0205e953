"""This runtime's own variables, written where later shells and programs take them from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from shellverdict.effects.scene import MOST_OPERANDS, Scene
from shellverdict.names import names
from shellverdict.shell.words import EMPTY, Word
from shellverdict.verdict import Effect, Kind

__all__ = ["planting_effects"]

MAX_TEXT_CHARS = 100_000
_SETTING = re.compile(r"\bTOOLFOLD_(?!LOG_LEVEL\b)[A-Z][A-Z0-9_]*[\"']?\s{0,4}[=:]")
_WRITERS = names("tee sponge sed gsed perl ed ex")
_DOCUMENTS = (".md", ".rst", ".txt", ".py", ".html", ".log", ".adoc")


def planting_effects(scene: Scene) -> Iterator[Effect]:
    """Text that sets one of the variables, put into a file that is not a document."""
    targets = [redirect.target for redirect in scene.run.redirects[:256] if redirect.writes]
    if scene.run.name in _WRITERS:
        targets.extend(islice(scene.run.argv[-1:], MOST_OPERANDS))
    files = [target for target in targets if _is_file(target)]
    if files and any(_SETTING.search(text) for text in _texts(scene)):
        for target in files:
            yield scene.effect(Kind.WRITE, "in:own", "planted", target=target)


def _is_file(target: Word) -> bool:
    return not target.lower().endswith(_DOCUMENTS) and not target.isdigit() and target != "/dev/null"


def _texts(scene: Scene) -> Iterator[str]:
    yield from (word[:MAX_TEXT_CHARS] for word in islice(scene.run.argv[1:], MOST_OPERANDS))
    stdin = scene.run.stdin
    yield ((stdin.text if stdin else None) or EMPTY)[:MAX_TEXT_CHARS]
