"""Read from a conversation what selecting tools needs: the user's texts and the tools called so far.

Accepts histories in any provider's format. Input is untrusted and bounded; unknown parts are skipped.
Knows nothing of the tools that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolfold.errors import CallError
from toolfold.model import BRIDGE_CALL, ToolCall
from toolfold.naming import is_reserved
from toolfold.retrieval.text import COMMON_WORDS, words
from toolfold.turn.bridge import unwrap
from toolfold.turn.notes import CLOSING, OPENING

MAX_USER_TEXTS = 4
MAX_USED_TOOLS = 8
MAX_READ_MESSAGES = 5_000
MAX_CALL_MESSAGES = 400
MAX_MESSAGE_PARTS = 200
MAX_LATEST_CHARS = 1_000_000
MAX_EARLIER_CHARS = 4_000
MAX_TOOL_NAME_CHARS = 1_000
MAX_ARGUMENT_CHARS = 50_000

_TEXT_TYPES = frozenset({"text", "input_text"})
_CALL_BLOCK_TYPES = frozenset({"tool_use", "function_call"})
_SCRIPT_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

# Words of the most common languages. A missing one costs one search, not a wrong call.
_REFERRING_WORDS = frozenset(
    """it its that this those these them they same again also too instead there then he she him her his
    hers one ones other others another both each likewise ditto similarly previous last
    auch nochmal wieder dasselbe gleiche gleichen dort es ihn sie aussi encore meme pareil la tambien otra
    mismo igual alli anche stesso ancora tambem mesmo outra тоже также снова опять его ее их""".split()  # noqa: SIM905
)
_CONTINUATION = re.compile(
    r"\W*(?:(?:and|also|but|or|plus|then|now|next|so|what about|how about|same|again|once more|instead|only"
    r"|und|auch|oder|dann|jetzt|nochmal|et|aussi|ou|puis|y|e|o|también|luego|ahora|anche|poi|também|agora"
    r"|и|а|также|тоже|теперь|потом)\b|然后|那|还有|再|同样|也|そして|じゃあ|では|また|同じ|그리고|또|그럼)",
    re.IGNORECASE,
)
_AGREEMENT = re.compile(
    r"\W*(?:(?:yes|yeah|yep|yup|ok|okay|sure|go ahead|go on|go for it|do (?:it|so|that)|proceed|continue"
    r"|confirm(?:ed)?|agreed|please|exactly|right|correct|sounds good|the (?:first|second|third|last)"
    r"|ja|jep|klar|genau|bitte|mach|oui|vas-y|d'accord|sí|si|claro|vale|dale|adelante|sì|certo|sim|pode"
    r"|да|ага|давай|конечно|tak|evet|tamam)\b|はい|うん|お願い|好|是|对|可以|行|네|예|응|좋아)",
    re.IGNORECASE,
)
_CLOSING_WORDS = re.compile(
    r"\b(?:thank(?:s|\s*(?:you|u))?|thx|tysm|ty|cheers|bye|goodbye|see (?:you|ya)|never\s?mind|nvm|stop"
    r"|danke|dank|tschüss|merci|au revoir|gracias|adiós|grazie|ciao|obrigad[oa]|tchau|bedankt|tack"
    r"|спасибо|пока|dziękuję|teşekkür\w*)\b|谢|再见|ありがと|さようなら|감사|고마",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The parts of a conversation that selecting tools needs."""

    user_texts: tuple[str, ...]
    """The user's texts, latest last."""
    used_tools: tuple[str, ...] = ()
    """The tools that were called, each once, latest last; for a bridge call the tool inside."""

    @classmethod
    def from_messages(cls, messages: str | Sequence[Mapping[str, Any]]) -> Conversation:
        """Read a single message, or a history in the format of OpenAI chat, Responses or Anthropic."""
        if isinstance(messages, str):
            return cls((messages[:MAX_LATEST_CHARS],) if messages.strip() else ())
        if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray, memoryview)):
            return cls(())
        said: list[str] = []
        used: dict[str, None] = {}
        for message in _latest_first(messages, MAX_READ_MESSAGES):
            if text := _user_text(message, MAX_EARLIER_CHARS if said else MAX_LATEST_CHARS):
                said.append(text)
            if len(said) == MAX_USER_TEXTS:
                break
        for message in _latest_first(messages, MAX_CALL_MESSAGES):
            used.update(dict.fromkeys(name for name in _called_tools(message) if name not in used))
            if len(used) >= MAX_USED_TOOLS:
                break
        return cls(tuple(reversed(said)), tuple(reversed(list(used)[:MAX_USED_TOOLS])))


def context_weight(message: str) -> float:
    """Return how much a message depends on earlier messages, from 0 (not at all) to 1 (completely)."""
    own, refers = _count_own_words(message)
    if refers:
        return 1.0 if own <= 1 else 0.75 if own == 2 else 0.5 if own == 3 else 0.3 if own <= 6 else 0.0
    return 0.6 if own <= 1 else 0.0


def is_follow_up(message: str) -> bool:
    """Return True if a message that requests nothing by itself continues an earlier request."""
    if len(message) > 200 or _CLOSING_WORDS.search(message):
        return False
    own, refers = _count_own_words(message)
    return own <= 3 and (refers or _AGREEMENT.match(message) is not None)


def _count_own_words(message: str) -> tuple[int, bool]:
    """Return the number of meaningful words in a message, and True if a word refers to earlier messages."""
    every = words(message[:MAX_EARLIER_CHARS])
    own = sum(
        _word_weight(word) for word in every if word not in COMMON_WORDS and word not in _REFERRING_WORDS
    )
    refers = _CONTINUATION.match(message) is not None or any(word in _REFERRING_WORDS for word in every)
    return own, refers


def _word_weight(word: str) -> int:
    """Return 1, or more for scripts without spaces, where one "word" may be a whole sentence."""
    return 1 if word.isascii() or not _SCRIPT_WITHOUT_SPACES.search(word) else max(1, len(word) // 3)


def _latest_first(items: Sequence[Any], most: int) -> Iterator[Mapping[str, Any]]:
    for place in range(len(items) - 1, max(-1, len(items) - 1 - most), -1):
        if isinstance(item := items[place], Mapping):
            yield item


def _user_text(message: Mapping[str, Any], longest: int) -> str:
    """Return what the user wrote in a message; empty for other roles and for tool results."""
    if message.get("role") != "user":
        return ""
    content = message.get("content")
    texts: list[str] = []
    for part in (content,) if isinstance(content, str) else _as_sequence(content)[:MAX_MESSAGE_PARTS]:
        text = part.get("text") if isinstance(part, Mapping) and _type_of(part) in _TEXT_TYPES else part
        if isinstance(text, str) and (own := _strip_notes(text[:MAX_LATEST_CHARS])[:longest]):
            texts.append(own)
            longest -= len(own)
        if longest <= 0:
            break
    return "\n".join(texts)


def _strip_notes(text: str) -> str:
    """Remove the notes about tools that Toolfold added to a user message."""
    before, *noted = text.split(OPENING)  # not a regular expression: quadratic on long texts
    own = "\n".join([before, *map(_after_note, noted)]).strip() if noted else text
    return own if own.strip() else ""


def _after_note(noted: str) -> str:
    """Return the text after the end of a note about tools; all of it if the note does not end."""
    _, closing, after = noted.partition(CLOSING)
    return after if closing else noted


def _called_tools(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tools that a message calls, directly or by `tool_call`, latest first."""
    if _type_of(message) in _CALL_BLOCK_TYPES:
        yield from _real_name(message.get("name"), message.get("arguments"))
    if message.get("role") != "assistant":
        return
    for call in _latest_first(_as_sequence(message.get("tool_calls")), MAX_MESSAGE_PARTS):
        if isinstance(function := call.get("function"), Mapping):
            yield from _real_name(function.get("name"), function.get("arguments"))
    if isinstance(function := message.get("function_call"), Mapping):
        yield from _real_name(function.get("name"), function.get("arguments"))
    for block in _latest_first(_as_sequence(message.get("content")), MAX_MESSAGE_PARTS):
        if _type_of(block) in _CALL_BLOCK_TYPES:
            yield from _real_name(block.get("name"), block.get("input"))


def _real_name(name: Any, arguments: Any) -> Iterator[str]:
    """Yield the name of the tool that a call runs, directly or by `tool_call`; nothing if it is invalid."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_TOOL_NAME_CHARS:
        return
    if name == BRIDGE_CALL:
        if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARS:
            return
        try:
            name = unwrap(ToolCall(name, arguments)).name
        except CallError:  # malformed: nothing was run
            return
    if not is_reserved(name):
        yield name.strip()


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _type_of(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""
