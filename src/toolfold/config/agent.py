"""The settings of the agent and of the model providers it may use. Reads nothing and connects to nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text


class ProviderSettings(Section):
    """One model provider: an address, a dialect and where its key is."""

    dialect: Literal["openai", "responses", "anthropic"] = Field(
        default="openai",
        description="The interface it speaks: openai (chat completions), responses or anthropic (messages).",
        json_schema_extra=USER_ONLY,
    )
    base_url: Text = Field(
        default="",
        description="The address of its interface; empty for the dialect's own provider.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="",
        description="The environment variable that holds its key.",
        json_schema_extra=USER_ONLY,
    )
    key_name: Text = Field(
        default="",
        description="The entry of the system keyring that holds its key, under the service `toolfold`.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=600.0,
        gt=0,
        le=7_200,
        description="How long one model call may take without receiving anything.",
        json_schema_extra=USER_ONLY,
    )


class AgentSettings(Section):
    """The model that the agent uses, and how far it may go for one message."""

    model: Text = Field(
        default="",
        description="The model, as PROVIDER:MODEL, for example anthropic:claude-sonnet-4-6.",
        json_schema_extra=USER_ONLY,
    )
    auxiliary_model: Text = Field(
        default="",
        description="The model for summaries and titles, as PROVIDER:MODEL; empty for the agent's own.",
        json_schema_extra=USER_ONLY,
    )
    context_tokens: Integer | None = Field(
        default=None,
        ge=1_000,
        description="The model's context window, if it is in no model list.",
        json_schema_extra=USER_ONLY,
    )
    instructions: Text = Field(
        default="", description="Added to the system prompt.", json_schema_extra=USER_ONLY
    )
    max_steps: Integer = Field(
        default=50, ge=1, le=1_000, description="Model calls for one message.", json_schema_extra=USER_ONLY
    )
    max_turn_tokens: Integer = Field(
        default=2_000_000,
        ge=1_000,
        description="Tokens that the model calls for one message may use, input and output.",
        json_schema_extra=USER_ONLY,
    )
    max_turn_seconds: Number = Field(
        default=3_600.0,
        gt=0,
        description="How long the work on one message may take.",
        json_schema_extra=USER_ONLY,
    )
    max_turn_cost: Number = Field(
        default=5.0,
        ge=0,
        description="Dollars that one message may cost, where the model's price is known; 0 for no limit.",
        json_schema_extra=USER_ONLY,
    )
    max_output_tokens: Integer | None = Field(
        default=None,
        ge=1,
        description="Tokens of one model reply; null for the provider's own limit.",
        json_schema_extra=USER_ONLY,
    )
    compress_at_percent: Number = Field(
        default=75.0,
        ge=10,
        le=95,
        description="How full the context window may get before old messages are summarised.",
        json_schema_extra=USER_ONLY,
    )
    max_delegation_depth: Integer = Field(
        default=2,
        ge=0,
        le=5,
        description="How many levels of sub-agents a task may create.",
        json_schema_extra=USER_ONLY,
    )
    max_delegates: Integer = Field(
        default=4,
        ge=1,
        le=32,
        description="How many sub-agents may work at the same time.",
        json_schema_extra=USER_ONLY,
    )
    memory_max_chars: Integer = Field(
        default=4_000,
        ge=0,
        le=100_000,
        description="How much the agent may remember across sessions; 0 turns memory off.",
        json_schema_extra=USER_ONLY,
    )
