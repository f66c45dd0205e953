"""Settings of the `text_to_speech` tool."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from toolfold.config.field_types import USER_ONLY, Number, PathValue, Section, Text, lower_text
from toolfold.config.web_settings import ServiceUrl

SpeechBackendName = Annotated[Literal["auto", "espeak", "piper", "remote"], BeforeValidator(lower_text)]


class SpeechSettings(Section):
    """Settings of the program or service that turns text into speech."""

    backend: SpeechBackendName = Field(
        default="auto",
        description="Program or service: espeak (espeak-ng), piper, or remote. `auto` uses "
        "piper if `piper_model` is set, otherwise the service if its key is set, "
        "otherwise espeak-ng.",
        json_schema_extra=USER_ONLY,
    )
    url: ServiceUrl = Field(
        default="https://api.openai.com/v1/audio/speech",
        description="URL of a speech service with OpenAI's speech API.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="OPENAI_API_KEY",
        description="Environment variable with the key of the speech service; empty if the "
        "service needs no key.",
        json_schema_extra=USER_ONLY,
    )
    model: Text = Field(
        default="gpt-4o-mini-tts",
        description="Model of the service.",
        json_schema_extra=USER_ONLY,
    )
    voice: Text = Field(
        default="",
        description="Voice if the model chooses none: a voice of the service, or a language of espeak-ng.",
        json_schema_extra=USER_ONLY,
    )
    piper_model: PathValue | None = Field(
        default=None, description="Voice file (.onnx) for piper.", json_schema_extra=USER_ONLY
    )
    timeout_seconds: Number = Field(
        default=60.0, gt=0, le=600, description="Time limit of one text.", json_schema_extra=USER_ONLY
    )
