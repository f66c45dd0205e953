"""What settings are made of: the kinds of values, and the block that holds them.

Knows no setting by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Strict
from pydantic.config import JsonDict

_ON = frozenset({"on", "true", "yes", "1", True})
_OFF = frozenset({"off", "false", "no", "0", False})


class Section(BaseModel):
    """One block of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _check_no_nul(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("no NUL character")
    return value


def check_text(value: str) -> str:
    value.encode()  # a lone surrogate can be read from YAML but never be shown or stored
    if "\0" in value:
        raise ValueError("no NUL character")
    return value


def lower_text(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def parse_switch(value: Any) -> Any:
    """YAML 1.1 reads `on` as true and YAML 1.2 as text; both are written by people."""
    word = lower_text(value)
    if not isinstance(word, (int, str)):
        return word
    return "on" if word in _ON else "off" if word in _OFF else word


# It widens what the runtime may do, and no project's file can set it.
USER_ONLY: JsonDict = {"grants": True, "in_project": "never"}

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Text = Annotated[str, AfterValidator(check_text)]
PathValue = Annotated[Path, AfterValidator(_check_no_nul)]
