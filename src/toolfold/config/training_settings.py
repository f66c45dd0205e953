"""Settings of training runs: the environments of an external trainer, and how to start the trainer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from toolfold.config.field_types import USER_ONLY, Integer, Number, PathValue, Section, Text
from toolfold.config.web_settings import ServiceUrl
from toolfold.core.types import FrozenDict

EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w{0,63}$")]


class TrainingParameter(Section):
    """A parameter of a training environment that a model may set."""

    type: Literal["number", "integer", "string", "boolean"] = Field(
        default="string", description="Type of the value.", json_schema_extra=USER_ONLY
    )
    default: bool | int | float | str = Field(
        default="", description="Value of the parameter if the model sets none.", json_schema_extra=USER_ONLY
    )
    minimum: Number | None = Field(default=None, description="Least value.", json_schema_extra=USER_ONLY)
    maximum: Number | None = Field(default=None, description="Greatest value.", json_schema_extra=USER_ONLY)
    choices: tuple[Text, ...] = Field(
        default=(),
        max_length=100,
        description="Allowed values of a text parameter; empty for any value.",
        json_schema_extra=USER_ONLY,
    )
    description: Annotated[Text, Field(max_length=300)] = Field(
        default="", description="Description of the parameter for the model.", json_schema_extra=USER_ONLY
    )


class TrainingEnvironment(Section):
    """An environment for training models, by a command on this machine or by a trainer over HTTP."""

    description: Annotated[Text, Field(max_length=500)] = Field(
        default="",
        description="Description of the training environment for the model.",
        json_schema_extra=USER_ONLY,
    )
    command: tuple[Text, ...] = Field(
        default=(),
        max_length=100,
        description="Program and arguments that start a training run, without a shell; "
        "{NAME} stands for a parameter.",
        json_schema_extra=USER_ONLY,
    )
    url: ServiceUrl = Field(
        default="", description="URL of a trainer to use instead of a command.", json_schema_extra=USER_ONLY
    )
    key_env: Text = Field(
        default="",
        description="Environment variable with the key of the trainer at `url`.",
        json_schema_extra=USER_ONLY,
    )
    directory: PathValue | None = Field(
        default=None,
        description="Working directory of the command; null for the working directory of Toolfold.",
        json_schema_extra=USER_ONLY,
    )
    environment: tuple[Text, ...] = Field(
        default=(),
        max_length=100,
        description="Names of environment variables that the command inherits.",
        json_schema_extra=USER_ONLY,
    )
    parameters: Annotated[dict[ParameterName, TrainingParameter], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        max_length=50,
        description="Parameters that a model may set, by name.",
        json_schema_extra=USER_ONLY,
    )

    @model_validator(mode="after")
    def _check_trainer(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a training environment must have either a command or a url")
        return self


class TrainingSettings(Section):
    """Settings of training runs, and their limits."""

    environments: Annotated[dict[EnvironmentName, TrainingEnvironment], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict,
        max_length=100,
        description="Environments that can be trained, by name.",
        json_schema_extra=USER_ONLY,
    )
    max_runs: Integer = Field(
        default=2,
        ge=1,
        le=100,
        description="Maximum number of training runs at the same time on this machine.",
        json_schema_extra=USER_ONLY,
    )
    max_hours: Number = Field(
        default=24.0,
        gt=0,
        le=2_000,
        description="Time limit of a training run on this machine, in hours.",
        json_schema_extra=USER_ONLY,
    )
    max_log_bytes: Integer = Field(
        default=10_000_000,
        ge=10_000,
        le=1_000_000_000,
        description="Maximum size of the log of a training run; older output is deleted.",
        json_schema_extra=USER_ONLY,
    )
    timeout_seconds: Number = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Time limit of a request to a trainer over HTTP.",
        json_schema_extra=USER_ONLY,
    )
