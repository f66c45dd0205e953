"""Types of setting values, and the base class of sections.

Knows no setting by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict, WithJsonSchema
from pydantic.config import JsonDict

_ON = frozenset({"on", "true", "yes", "1", True})
_OFF = frozenset({"off", "false", "no", "0", False})


class Section(BaseModel):
    """Base class of all sections of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _check_no_nul(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("must be a path without NUL characters")
    return value


def check_text(value: str) -> str:
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("must be text without NUL characters or lone surrogates")
    return value


def lower_text(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _check_store(value: str) -> str:
    if value == "sqlite" or value.startswith(("postgresql://", "postgres://")):
        return value
    raise ValueError("must be sqlite, or a URL that starts with postgresql://")


def _check_secure_url(value: str) -> str:
    """Accept an https URL, or an http URL of this machine; reject credentials, a query or a fragment."""
    parts = urlsplit(value)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc) and value.isprintable()
    if value and not (parts.hostname and is_plain and (parts.scheme == "https" or is_local)):
        raise ValueError("must be a URL that starts with https://, without user name, query and fragment")
    return value


def parse_switch(value: Any) -> Any:
    """Return "on" or "off" for YAML 1.1 and 1.2 spellings of booleans; return other values unchanged."""
    word = lower_text(value)
    if not isinstance(word, (int, str)):
        return word
    return "on" if word in _ON else "off" if word in _OFF else word


# For settings that widen what the runtime may do, and that a project's file must never set.
USER_ONLY: JsonDict = {"grants": True, "in_project": "never"}

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Text = Annotated[str, AfterValidator(check_text)]
SecureUrl = Annotated[Text, AfterValidator(_check_secure_url)]
StoreAddress = Annotated[Text, AfterValidator(_check_store)]
Switch = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(parse_switch),
    WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
]
PathValue = Annotated[Path, AfterValidator(_check_no_nul)]
