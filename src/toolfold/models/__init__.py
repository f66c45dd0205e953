"""Model dialects: the format of tools, messages and tool results in each provider's API.

One module for each dialect. Sends nothing, and does not decide which tools are shown.
"""

from toolfold.models.anthropic_messages import AnthropicMessages
from toolfold.models.dialect import (
    DEFAULT_MEDIA_KINDS,
    Dialect,
    DialectName,
    Message,
    is_instruction,
    is_notice,
    is_user_message,
)
from toolfold.models.openai_chat import OpenAIChat
from toolfold.models.openai_responses import OpenAIResponses

__all__ = [
    "DEFAULT_MEDIA_KINDS",
    "DIALECTS",
    "Dialect",
    "DialectName",
    "Message",
    "get_dialect",
    "is_instruction",
    "is_notice",
    "is_user_message",
]

DIALECTS: dict[DialectName, Dialect] = {
    dialect.name: dialect for dialect in (OpenAIChat(), AnthropicMessages(), OpenAIResponses())
}


def get_dialect(name: str) -> Dialect:
    """Return the dialect with this name. Raises ValueError with the known names if there is none."""
    for known, dialect in DIALECTS.items():
        if known == name:
            return dialect
    raise ValueError(f"unknown model dialect {name!r}; use one of {', '.join(DIALECTS)}")
