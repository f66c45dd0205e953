"""Settings of the agent and of its model providers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolfold.config.field_types import USER_ONLY, Integer, Number, Section, Text


class ProviderSettings(Section):
    """Settings of a model provider: base URL, API dialect, and where its API key is stored."""

    dialect: Literal["openai", "responses", "anthropic"] = Field(
        default="openai",
        description="API dialect: openai (chat completions), responses or anthropic (messages).",
        json_schema_extra=USER_ONLY,
    )
    base_url: Text = Field(
        default="",
        description="Base URL of the API; if empty, that of the default provider for `dialect`.",
        json_schema_extra=USER_ONLY,
    )
    key_env: Text = Field(
        default="",
        description="Environment variable with the API key.",
        json_schema_extra=USER_ONLY,
    )
    key_name: Text = Field(
        default="",
        description="Entry of the system keyring that contains the API key, under the "
        "service name `toolfold`.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=600.0,
        gt=0,
        le=7_200,
        description="How long a model call may wait without receiving data.",
        json_schema_extra=USER_ONLY,
    )


class AgentSettings(Section):
    """Settings of the agent: its model and its limits per message."""

    model: Text = Field(
        default="",
        description="Model of the agent, as PROVIDER:MODEL, for example anthropic:claude-sonnet-4-6.",
        json_schema_extra=USER_ONLY,
    )
    auxiliary_model: Text = Field(
        default="",
        description="Model that summarises old messages, as PROVIDER:MODEL; empty for `agent.model`.",
        json_schema_extra=USER_ONLY,
    )
    context_tokens: Integer | None = Field(
        default=None,
        ge=1_000,
        description="Context window of the model in tokens, for a model whose window Toolfold does not know.",
        json_schema_extra=USER_ONLY,
    )
    instructions: Text = Field(
        default="", description="Instructions to add to the system prompt.", json_schema_extra=USER_ONLY
    )
    max_steps: Integer = Field(
        default=50,
        ge=1,
        le=1_000,
        description="Maximum number of model calls for one message of the user.",
        json_schema_extra=USER_ONLY,
    )
    max_turn_tokens: Integer = Field(
        default=2_000_000,
        ge=1_000,
        description="Maximum number of input and output tokens for one message of the user.",
        json_schema_extra=USER_ONLY,
    )
    max_turn_seconds: Number = Field(
        default=3_600.0,
        gt=0,
        description="Time limit of the work on one message of the user.",
        json_schema_extra=USER_ONLY,
    )
    max_turn_cost: Number = Field(
        default=5.0,
        ge=0,
        description="Cost limit of the work on one message of the user, in US dollars, if "
        "the model's price is known; 0 for no limit.",
        json_schema_extra=USER_ONLY,
    )
    max_output_tokens: Integer | None = Field(
        default=None,
        ge=1,
        description="Maximum number of tokens of a model reply; null for the model's own limit.",
        json_schema_extra=USER_ONLY,
    )
    max_repeated_failures: Integer = Field(
        default=4,
        ge=2,
        le=100,
        description="How often the same tool call may fail in one turn before the turn ends.",
        json_schema_extra=USER_ONLY,
    )
    compress_at_percent: Number = Field(
        default=75.0,
        ge=10,
        le=95,
        description="Percentage of the context window that may be used before old messages are summarised.",
        json_schema_extra=USER_ONLY,
    )
    max_delegation_depth: Integer = Field(
        default=2,
        ge=0,
        le=5,
        description="Maximum depth of nested sub-agents.",
        json_schema_extra=USER_ONLY,
    )
    max_delegates: Integer = Field(
        default=4,
        ge=1,
        le=32,
        description="Maximum number of sub-agents that run at the same time, on each level of nesting.",
        json_schema_extra=USER_ONLY,
    )
    memory_max_chars: Integer = Field(
        default=4_000,
        ge=0,
        le=100_000,
        description="Maximum number of characters of the memory across sessions; 0 turns the memory off.",
        json_schema_extra=USER_ONLY,
    )
