"""Conversations with executable tools: BFCL multi-turn, AgentDojo, and some with the sample services.

BFCL and AgentDojo come from packages that `scripts/conversations_env.sh` installs; the others are in
`sample_conversations.jsonl`. A conversation has messages of the user, and for each message the calls that a
correct agent makes. Its tools work on a state of their own.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from toolfold import sample_catalog
from toolfold.core.types import Json
from toolfold.tools.sample.sample_services import SampleServices

SEED = 16
AGENTDOJO_VERSION = "v1.2.2"
BFCL_PARTS = ("base", "miss_func", "miss_param", "long_context")
NEW_TOOLS_MESSAGE = "I have updated some more functions you can choose from. What about now?"
"""BFCL's message for a turn in which only the available functions change."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A tool call that a correct agent makes."""

    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class GoldTurn:
    """A message of the user and the tool calls that a correct agent makes in response."""

    message: str
    calls: tuple[GoldCall, ...]


class ToolState(Protocol):
    """The state that the tools of one conversation read and change."""

    def run(self, name: str, arguments: Json) -> Any:
        """Execute a tool."""
        ...

    def is_correct(self) -> bool:
        """Return True if the state is the same as after the recorded calls."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recorded conversation."""

    id: str
    turns: tuple[GoldTurn, ...]
    open_state: Callable[[], ToolState]


@dataclass(frozen=True, slots=True)
class ConversationSet:
    """Conversations and the definitions of all tools of their data set."""

    name: str
    definitions: Sequence[Json]
    """Name, description, parameters and toolset of each tool."""
    conversations: Sequence[Conversation]


def load_sets(names: Collection[str], limit: int) -> Iterator[ConversationSet]:
    """Yield the named data sets with at most `limit` conversations each, drawn at random; 0 for all."""
    if "sample" in names:
        yield load_sample_set(limit)
    if "bfcl" in names:
        yield from load_bfcl_sets(limit)
    if "agentdojo" in names:
        yield _load_agentdojo(limit)


def load_bfcl_sets(limit: int) -> Iterator[ConversationSet]:
    """Yield the parts of BFCL multi-turn with at most `limit` conversations each; 0 for all."""
    for name in BFCL_PARTS:
        yield _load_bfcl(name, limit)


def _draw(rows: Sequence[Any], limit: int) -> list[Any]:
    return random.Random(SEED).sample(list(rows), limit) if 0 < limit < len(rows) else list(rows)


# Sample services


def load_sample_set(limit: int) -> ConversationSet:
    """Return conversations with the sample services."""
    rows = _read_lines(Path(__file__).with_name("sample_conversations.jsonl"))
    definitions = [
        {
            **json.loads(json.dumps(tool.definition()["function"])),
            "toolset": tool.toolset,
        }
        for tool in sample_catalog()
    ]
    conversations = [
        Conversation(
            row["id"],
            tuple(
                GoldTurn(turn["message"], tuple(GoldCall(*call) for call in turn["calls"]))
                for turn in row["turns"]
            ),
            lambda row=row: _SampleState(row),  # type: ignore[misc]
        )
        for row in _draw(rows, limit)
    ]
    return ConversationSet("sample services", definitions, conversations)


class _SampleState:
    """The sample services of one conversation; correct if every recorded call ran, in order."""

    def __init__(self, row: Json) -> None:
        self._services = SampleServices()
        self._expected = [call[0] for turn in row["turns"] for call in turn["calls"]]
        self._ran: list[str] = []

    def run(self, name: str, arguments: Json) -> Any:
        service, _, tool = name.partition("_")
        result = self._services.call(service, tool, arguments)
        self._ran.append(name)
        return result

    def is_correct(self) -> bool:
        return self._ran == self._expected


# BFCL


def _load_bfcl(part: str, limit: int) -> ConversationSet:
    data = files("bfcl_eval") / "data"
    file = f"BFCL_v4_multi_turn_{part}.json"
    answers = {row["id"]: row["ground_truth"] for row in _read_lines(data / "possible_answer" / file)}
    rows = _draw(_read_lines(data / file), limit)
    conversations = [_bfcl_conversation(row, answers[row["id"]], part) for row in rows]
    return ConversationSet(f"BFCL {part}", list(_bfcl_definitions()), conversations)


def _read_lines(file: Any) -> list[Json]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _bfcl_classes() -> dict[str, str]:
    """Return BFCL's multi-turn classes, each with the file that describes its methods."""
    constants = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    described: Mapping[str, str] = constants.MULTI_TURN_FUNC_DOC_FILE_MAPPING
    skipped = ("Memory", "WebSearch")  # they belong to other parts of BFCL
    return {name: file for name, file in described.items() if not name.startswith(skipped)}


def _bfcl_definitions() -> Iterator[Json]:
    data = files("bfcl_eval") / "data" / "multi_turn_func_doc"
    for name, file in _bfcl_classes().items():
        for row in _read_lines(data / file):
            schema = _convert_types(row["parameters"])
            yield {**row, "parameters": schema, "toolset": f"bfcl-{name.lower()}"}


def _convert_types(value: Any) -> Any:
    """Return a schema in which Python's type names are replaced by those of JSON Schema."""
    if isinstance(value, list):
        return [_convert_types(each) for each in value]
    if not isinstance(value, dict):
        return value
    converted = {key: _convert_types(each) for key, each in value.items()}
    if isinstance(kind := value.get("type"), str) and kind in _JSON_TYPES:
        converted.pop("type")
        if _JSON_TYPES[kind]:
            converted["type"] = _JSON_TYPES[kind]
    return converted


def _bfcl_conversation(row: Json, answers: Sequence[Sequence[str]], part: str) -> Conversation:
    turns = [
        GoldTurn(
            question[0]["content"] if question else NEW_TOOLS_MESSAGE,
            tuple(_parse_python_call(text, row["involved_classes"]) for text in calls),
        )
        for question, calls in zip(row["question"], answers, strict=True)
    ]

    def open_state() -> ToolState:
        return _BfclState(row, answers, part == "long_context")

    return Conversation(row["id"], tuple(turns), open_state)


def _parse_python_call(text: str, classes: Sequence[str]) -> GoldCall:
    """Parse a call written in Python, and find the names of its positional arguments."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not a function call: {text}")
    name = call.func.id
    arguments = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
    if call.args:
        method = next(
            getattr(_bfcl_class(each), name) for each in classes if hasattr(_bfcl_class(each), name)
        )
        names = [each for each in inspect.signature(method).parameters if each != "self"]
        arguments |= dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    return GoldCall(name, arguments)


def _bfcl_class(name: str) -> Any:
    constants = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    return getattr(importlib.import_module(constants.CLASS_FILE_PATH_MAPPING[name]), name)


class _BfclState:
    """Instances of the BFCL classes whose methods a conversation calls."""

    def __init__(self, row: Json, answers: Sequence[Sequence[str]], long_context: bool) -> None:
        self._row, self._answers, self._long_context = row, answers, long_context
        self._instances = self._create_instances()

    def _create_instances(self) -> dict[str, Any]:
        instances = {}
        for name in self._row["involved_classes"]:
            instances[name] = _bfcl_class(name)()
            if hasattr(instances[name], "_load_scenario"):
                scenario = copy.deepcopy(self._row["initial_config"].get(name, {}))
                instances[name]._load_scenario(scenario, long_context=self._long_context)
        return instances

    def run(self, name: str, arguments: Json) -> Any:
        return _call_method(self._instances, name, arguments)

    def is_correct(self) -> bool:
        expected = self._create_instances()
        for text in (text for calls in self._answers for text in calls):
            call = _parse_python_call(text, self._row["involved_classes"])
            _call_method(expected, call.name, call.arguments)
        return all(
            _public_state(each) == _public_state(expected[name]) for name, each in self._instances.items()
        )


def _call_method(instances: Mapping[str, Any], name: str, arguments: Json) -> Any:
    method = next((getattr(each, name) for each in instances.values() if hasattr(each, name)), None)
    if method is None:
        return {"error": f"{name} is not available in this conversation"}
    try:
        return method(**copy.deepcopy(arguments))
    except Exception as error:  # recorded calls include some that fail
        return {"error": str(error)}


def _public_state(instance: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(instance).items() if not key.startswith("_")}


# AgentDojo


def _load_agentdojo(limit: int) -> ConversationSet:
    suites = importlib.import_module("agentdojo.task_suite.load_suites").get_suites(AGENTDOJO_VERSION)
    definitions: dict[str, Json] = {}
    for name, suite in suites.items():
        for tool in suite.tools:
            definition = {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.model_json_schema(),
                "toolset": f"agentdojo-{name}",
            }
            definitions.setdefault(tool.name, definition)
    tasks = [(suite, task) for suite in suites.values() for task in suite.user_tasks.values()]
    conversations = [_agentdojo_conversation(suite, task) for suite, task in _draw(tasks, limit)]
    return ConversationSet("AgentDojo", list(definitions.values()), conversations)


def _agentdojo_conversation(suite: Any, task: Any) -> Conversation:
    gold = task.ground_truth(_AgentDojoState(suite, task).environment)
    calls = tuple(GoldCall(call.function, _plain_json(dict(call.args))) for call in gold)
    turn = GoldTurn(task.PROMPT, calls)
    return Conversation(f"{suite.name}_{task.ID}", (turn,), lambda: _AgentDojoState(suite, task))


class _AgentDojoState:
    """The AgentDojo environment of one task."""

    def __init__(self, suite: Any, task: Any) -> None:
        self.environment = task.init_environment(suite.load_and_inject_default_environment({}))
        self._before = self.environment.model_copy(deep=True)
        runtime = importlib.import_module("agentdojo.functions_runtime")
        self._functions = runtime.FunctionsRuntime(suite.tools)
        self._suite, self._task = suite, task
        self._trace: list[Any] = []

    def run(self, name: str, arguments: Json) -> Any:
        runtime = importlib.import_module("agentdojo.functions_runtime")
        self._trace.append(runtime.FunctionCall(function=name, args=arguments))
        result, error = self._functions.run_function(self.environment, name, arguments)
        return {"error": error} if error else _plain_json(result)

    def is_correct(self) -> bool:
        blocks = importlib.import_module("agentdojo.types")
        output = [blocks.text_content_block_from_string(self._task.GROUND_TRUTH_OUTPUT)]
        return bool(
            self._suite._check_task_result(self._task, output, self._before, self.environment, self._trace)
        )


def _plain_json(value: Any) -> Any:
    """Convert a value to JSON data: pydantic models to objects, other types to text."""

    def convert(each: Any) -> Any:
        return each.model_dump(mode="json") if hasattr(each, "model_dump") else str(each)

    return json.loads(json.dumps(value, default=convert))
