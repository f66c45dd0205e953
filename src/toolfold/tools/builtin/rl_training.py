"""The `rl` toolset: train models with an external trainer configured by the user.

A model chooses among configured environments and sets declared parameters; it never sees or writes a command.
Starting a run needs approval, because it costs money or hours of this machine, and so does stopping one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.config.training_settings import TrainingEnvironment, TrainingParameter, TrainingSettings
from toolfold.core.errors import CallError, closest_names, did_you_mean
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool

if TYPE_CHECKING:
    from toolfold.tools.training.http_trainer import HttpTrainer
    from toolfold.tools.training.training_runs import LocalRuns

SOURCE = Source("builtin", "rl")
MAX_LOG_CHARS = 4_000
MAX_ANSWER_BYTES = 5_000_000
MAX_LISTED_RUNS = 30
OVERHEAD_TIMEOUT_S = 90.0
REMOTE_PREFIX = "remote"
_START = "rl_start_training"
BASE_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER")
_TEXT_VALUE = re.compile(r"[\w.:/@+=-]{1,200}")
_RUN_ID = re.compile(r"[\w.:-]{1,160}")

_ENVIRONMENT = {"type": "string", "minLength": 1, "maxLength": 64}
_RUN = {"type": "string", "minLength": 1, "maxLength": 160, "description": "Id of the run."}
_PARAMETERS = {
    "type": "object",
    "description": "Parameters by name{rl_list_environments?; rl_list_environments describes them}.",
}


def _make_schema(description: str, required: tuple[str, ...] = (), **properties: Json) -> Json:
    return {
        "description": description,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    }


_SCHEMAS: Mapping[str, Json] = {
    "rl_list_environments": _make_schema(
        "List the environments in which a model can be trained by reinforcement learning, with parameters."
    ),
    "rl_configure": _make_schema(
        "Set parameters of the next training run of an environment, such as the learning rate.",
        ("environment",),
        environment=_ENVIRONMENT,
        parameters=_PARAMETERS,
    ),
    "rl_start_training": _make_schema(
        "Start a reinforcement learning training run in an environment.",
        ("environment",),
        environment=_ENVIRONMENT,
        parameters=_PARAMETERS,
    ),
    "rl_check_status": _make_schema(
        "Watch a training run: its state, its last metrics and the end of its log.", ("run",), run=_RUN
    ),
    "rl_stop_training": _make_schema("Stop a training run before its end.", ("run",), run=_RUN),
    "rl_get_results": _make_schema(
        "Get the results of a training run: its final metrics and parameters.", ("run",), run=_RUN
    ),
    "rl_list_runs": _make_schema("List earlier and current training runs with their states."),
}


class TrainingRejected(CallError):
    """Raised when a training environment or parameter is unknown, or a parameter has an invalid value."""


def tools(services: Services) -> list[Tool]:
    """Return the tools for training runs."""
    if services.training_directory is None:
        return []
    training = _build_training(services, services.training_directory)
    read, write = (Effect.READ,), (Effect.WRITE,)
    handlers = {
        "rl_list_environments": (training.list_environments, "🏋️", read),
        "rl_configure": (training.configure, "🔧", write),
        "rl_start_training": (training.start, "🚀", (Effect.EXECUTE, Effect.NETWORK, Effect.SPEND)),
        "rl_check_status": (training.check_status, "📈", read),
        "rl_stop_training": (training.stop, "🛑", (Effect.EXECUTE, Effect.DESTRUCTIVE)),
        "rl_get_results": (training.get_results, "🏁", read),
        "rl_list_runs": (training.list_runs, "📋", read),
    }
    prechecks = {"rl_start_training": training.check_start, "rl_stop_training": training.check_stop}
    return [
        build_builtin_tool(
            name=name,
            toolset="rl",
            schema=_SCHEMAS[name],
            handler=handler,
            check_fn=training.check,
            emoji=emoji,
            effects=effects,
            judged_as=dict.fromkeys(_SCHEMAS[name]["parameters"]["properties"], Meaning.NOTE),
            precheck=prechecks.get(name),
            timeout=services.training.timeout_seconds + OVERHEAD_TIMEOUT_S,
            synonyms=("reinforcement learning", "fine-tune", "train", "GRPO", "reward"),
            source=SOURCE,
        )
        for name, (handler, emoji, effects) in handlers.items()
    ]


def starts_training(tool: Tool) -> bool:
    """Return True for the tool that starts training runs."""
    return tool.name == _START and tool.source == SOURCE


def inject_parameters(services: Services) -> Callable[[Tool, Json, CallContext], Json | None]:
    """Return a hook that adds stored and default parameters to calls of `rl_start_training`.

    Approval then shows all parameters with which the run starts.
    """
    directory = services.training_directory
    training = None if directory is None else _build_training(services, directory)

    def add_parameters(tool: Tool, args: Json, _: CallContext) -> Json | None:
        return training.complete(args) if training is not None and starts_training(tool) else None

    return add_parameters


def _build_training(services: Services, directory: Path) -> TrainingTools:
    return TrainingTools(
        services.training,
        services.environment,
        services.outside_text,
        directory,
        services.workspace.root,
    )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TrainingTools:
    """Handlers and availability check of the tools for training runs."""

    settings: TrainingSettings
    variables: Mapping[str, str]
    outside_text: OutsideText
    directory: Path
    workspace: Path

    def check(self) -> bool:
        """Return True if an environment is configured. Raises an error with the reason otherwise."""
        if not self.settings.environments:
            raise CallError("No training environment is configured: add one to training.environments.")
        return True

    def list_environments(self, _: Json, __: CallContext) -> Json:
        """Return the configured training environments with their parameters."""
        return {
            "environments": {
                name: {
                    "description": each.description,
                    "trainer": "command" if each.command else "http",
                    "parameters": {key: _describe(value) for key, value in each.parameters.items()},
                }
                for name, each in self.settings.environments.items()
            }
        }

    def configure(self, args: Json, _: CallContext) -> Json:
        """Store parameters for the next run of a training environment, and return all stored parameters."""
        name = args["environment"]
        environment = self._find_environment(name)
        stored = {**self._read_configured(name, environment), **args.get("parameters", {})}
        parameters = _check_parameters(environment, stored)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._configuration_file(name)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(parameters), encoding="utf-8")
        temporary.replace(file)
        return {"environment": name, "parameters": parameters}

    def complete(self, args: Json) -> Json | None:
        """Return the arguments for starting a run, with stored and default parameters added.

        Returns None for arguments that `start` will reject.
        """
        name, given = args.get("environment"), args.get("parameters", {})
        environment = self.settings.environments.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or environment is None or not isinstance(given, dict):
            return None
        defaults = {key: each.default for key, each in environment.parameters.items()}
        return {**args, "parameters": {**defaults, **self._read_configured(name, environment), **given}}

    def check_start(self, args: Json, _: CallContext) -> Json:
        """Return the parameters of a run. Raises TrainingRejected if it cannot be started with them."""
        environment = self._find_environment(args["environment"])
        if environment.url:
            self._trainer(environment)
        return _check_parameters(environment, args.get("parameters", {}))

    def check_stop(self, args: Json, _: CallContext) -> None:
        """Raise TrainingRejected if there cannot be such a run."""
        self._find_remote(_check_run_id(args["run"]))

    async def start(self, args: Json, _: CallContext) -> Json:
        """Start a training run, and return its id and parameters."""
        name, parameters = args["environment"], self.check_start(args, _)
        environment = self._find_environment(name)
        if environment.url:
            run = f"{REMOTE_PREFIX}:{name}:{await self._trainer(environment).start(name, parameters)}"
        else:
            run = await asyncio.to_thread(self._start_command, name, environment, parameters)
        return {"run": run, "parameters": parameters}

    def _start_command(self, name: str, environment: TrainingEnvironment, parameters: Json) -> str:
        from toolfold.tools.training.training_runs import RunSpec

        names = (*BASE_VARIABLES, *environment.environment)
        spec = RunSpec(
            name=name,
            command=[_fill_in(word, parameters) for word in environment.command],
            directory=environment.directory or self.workspace,
            environment={each: self.variables[each] for each in names if each in self.variables},
            parameters=parameters,
            max_seconds=self.settings.max_hours * 3_600,
            max_log_bytes=self.settings.max_log_bytes,
        )
        return self._runs().start(spec)

    async def check_status(self, args: Json, _: CallContext) -> Json:
        """Return the state, the last metrics and the end of the log of a training run."""
        run = _check_run_id(args["run"])
        if remote := self._find_remote(run):
            state = await remote[0].read(remote[1])
            log = state.pop("log")
        else:
            runs = self._runs()
            state = {**runs.read(run), "metrics": await asyncio.to_thread(runs.read_metrics, run)}
            log = await asyncio.to_thread(runs.read_log, run, MAX_LOG_CHARS)
        return {"run": run, **state, "log": await self.outside_text.mark(log[-MAX_LOG_CHARS:])}

    async def get_results(self, args: Json, _: CallContext) -> Json:
        """Return the final metrics of a training run. Raises TrainingRejected while it is running."""
        status = await self.check_status(args, _)
        if status["state"] in ("queued", "starting", "running"):
            raise TrainingRejected(
                f"The training run is still {status['state']}. rl_check_status watches it."
            )
        return {key: value for key, value in status.items() if key != "log" or status["state"] != "completed"}

    async def stop(self, args: Json, _: CallContext) -> Json:
        """Stop a training run and wait until it has ended."""
        run = _check_run_id(args["run"])
        if remote := self._find_remote(run):
            state = await remote[0].stop(remote[1])
            return {"run": run, "state": state["state"]}
        return await asyncio.to_thread(self._runs().stop, run)

    def list_runs(self, _: Json, __: CallContext) -> Json:
        """Return the newest training runs on this machine."""
        runs = self._runs()
        return {"runs": [runs.read(each) for each in runs.list_ids()[:MAX_LISTED_RUNS]]}

    def _find_environment(self, name: str) -> TrainingEnvironment:
        environment = self.settings.environments.get(name)
        if environment is None:
            near = did_you_mean(closest_names(name, self.settings.environments))
            raise TrainingRejected(f"There is no training environment {name[:60]!r}.{near}")
        return environment

    def _configuration_file(self, name: str) -> Path:
        return self.directory / f"{name}.json"  # the name is one of the configured ones

    def _read_configured(self, name: str, environment: TrainingEnvironment) -> Json:
        """Return the stored parameters that a training environment still supports."""
        try:
            stored = json.loads(self._configuration_file(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        known = stored.items() if isinstance(stored, dict) else ()
        return {key: value for key, value in known if key in environment.parameters}

    def _find_remote(self, run: str) -> tuple[HttpTrainer, str] | None:
        """Return the trainer and run id of a run over HTTP; None for a run on this machine."""
        prefix, _, rest = run.partition(":")
        if prefix != REMOTE_PREFIX:
            return None
        name, _, run_id = rest.partition(":")
        environment = self._find_environment(name)
        if not environment.url or not run_id or ":" in run_id:
            raise TrainingRejected(f"There is no training run {run!r}.")
        return self._trainer(environment), run_id

    def _trainer(self, environment: TrainingEnvironment) -> HttpTrainer:
        from toolfold.tools.internet.address_policy import AddressPolicy
        from toolfold.tools.internet.service_client import ServiceClient
        from toolfold.tools.training.http_trainer import HttpTrainer
        from toolfold.tools.training.training_runs import TrainingFailed

        service = ServiceClient(
            name="trainer",
            policy=AddressPolicy.for_service(),
            timeout_s=self.settings.timeout_seconds,
            max_bytes=MAX_ANSWER_BYTES,
            mark=self.outside_text.mark,
            error=TrainingFailed,
        )
        key = self.variables.get(environment.key_env, "").strip() if environment.key_env else ""
        if environment.key_env and not key:
            raise TrainingRejected(f"The key of the trainer is missing: set {environment.key_env}.")
        return HttpTrainer(environment.url, key, service)

    def _runs(self) -> LocalRuns:
        from toolfold.tools.training.training_runs import LocalRuns

        return LocalRuns(self.directory / "runs", max_runs=self.settings.max_runs)


def _describe(parameter: TrainingParameter) -> Json:
    described = parameter.model_dump(exclude_defaults=True, mode="json")
    return {"type": parameter.type, "default": parameter.default, **described}


def _check_parameters(environment: TrainingEnvironment, given: Json) -> Json:
    """Return the parameters, completed with defaults. Raises TrainingRejected if one is invalid."""
    for name in given:
        if name not in environment.parameters:
            known = ", ".join(environment.parameters) or "none"
            raise TrainingRejected(f"There is no parameter {name[:60]!r}. The parameters are: {known}.")
    return {
        name: _check_value(name, parameter, given.get(name, parameter.default))
        for name, parameter in environment.parameters.items()
    }


def _check_value(name: str, parameter: TrainingParameter, value: Any) -> Any:
    expected: dict[str, tuple[type, ...]] = {
        "number": (int, float),
        "integer": (int,),
        "string": (str,),
        "boolean": (bool,),
    }
    is_boolean = isinstance(value, bool)
    if not isinstance(value, expected[parameter.type]) or is_boolean != (parameter.type == "boolean"):
        raise TrainingRejected(f"{name} must be a {parameter.type}.")
    if isinstance(value, str):
        _check_text(name, parameter, value)
    elif isinstance(value, (int, float)) and not is_boolean:
        _check_range(name, parameter, value)
    return value


def _check_range(name: str, parameter: TrainingParameter, value: float) -> None:
    low, high = parameter.minimum, parameter.maximum
    if (low is not None and value < low) or (high is not None and value > high):
        raise TrainingRejected(f"{name} must be between {low} and {high}, not {value}.")


def _check_text(name: str, parameter: TrainingParameter, value: str) -> None:
    if parameter.choices and value not in parameter.choices:
        raise TrainingRejected(f"{name} must be one of {', '.join(parameter.choices)}.")
    if value and (not _TEXT_VALUE.fullmatch(value) or value.startswith("-") or ".." in value):
        raise TrainingRejected(f"{name} may contain only letters, digits and . : / @ + = - _, and no option.")


def _fill_in(word: str, parameters: Json) -> str:
    """Return a command argument with placeholders such as {NAME} replaced by parameter values."""

    def replace_name(found: re.Match[str]) -> str:
        value = parameters.get(found[1], found[0])
        return str(value).lower() if isinstance(value, bool) else str(value)

    return re.sub(r"\{([A-Za-z_]\w*)\}", replace_name, word)


def _check_run_id(run: str) -> str:
    if not _RUN_ID.fullmatch(run):
        raise TrainingRejected(f"{run[:60]!r} is not the id of a training run.")
    return run
