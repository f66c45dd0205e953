"""The tools `vision_analyze` and `mixture_of_agents`, with models on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.internet.web_server import Page, Request, WebServer, run_web_server
from tests.providers.aimock import serve_aimock
from toolfold import Answer, Runtime, ToolCall, ToolResult, open_runtime
from toolfold.agent import Agent
from toolfold.config import load_config
from toolfold.core.types import Approver, Json
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("anthropic")),
    reason="the packages openai and anthropic are not installed",
)

PNG = b"\x89PNG\r\n\x1a\n rest of the image"
FIXTURES: list[Json] = [
    {"match": {"userMessage": "What is in the picture?"}, "response": {"content": "A lighthouse."}},
    {"match": {"userMessage": "<question>"}, "response": {"content": "Combined: 42."}},
    {"match": {"model": "broken"}, "response": {"error": {"message": "out of order"}, "status": 400}},
    {"match": {"userMessage": "What is six times seven?"}, "response": {"content": "It is 42."}},
]


class ModelRuntimes(Protocol):
    """Opens runtimes with settings; by default every call is approved."""

    def __call__(self, settings: Json, *, approver: Approver | None = ...) -> Runtime: ...


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_aimock(tmp_path_factory.mktemp("aimock"), FIXTURES) as url:
        yield url


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with run_web_server() as running:
        yield running


@pytest.fixture
def open_models(home: Path, tmp_path: Path, server: WebServer) -> Iterator[ModelRuntimes]:
    server.requests.clear()
    with ExitStack() as stack:

        def open_here(settings: Json, *, approver: Approver | None = lambda _: Answer.ONCE) -> Runtime:
            env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "MOCK_KEY": "s3cret-model-key"}
            overrides = {"web": {"private_networks": ["127.0.0.0/8"]}, **settings}
            config = load_config(project=tmp_path, env=env, overrides=overrides)
            return stack.enter_context(open_runtime(config, approver=approver))

        yield open_here


def make_providers(url: str) -> Json:
    """Return one provider for each dialect, named after it."""
    bases = {"openai": f"{url}/v1", "responses": f"{url}/v1", "anthropic": url}
    return {
        f"mock-{name}": {"dialect": name, "base_url": base, "key_env": "MOCK_KEY"}
        for name, base in bases.items()
    }


def look(runtime: Runtime, **args: Any) -> ToolResult:
    return runtime.session(["vision"]).call_sync("vision_analyze", args)


def find(runtime: Runtime, message: str) -> list[str]:
    found = runtime.retriever.answer(runtime.registry.snapshot(), message, mode="hybrid", limit=3)
    return [hit.name for hit in found.hits]


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
def test_agent_asks_a_vision_model_about_an_image_in_every_provider_format(
    open_models: ModelRuntimes, models: str, tmp_path: Path, dialect: str
) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)
    runtime = open_models({"vision": {"model": f"mock-{dialect}:seer"}, "providers": make_providers(models)})
    args = {"image": "photo.png", "question": "What is in the picture?"}
    model = ScriptedProvider([ScriptedReply("", [ToolCall("vision_analyze", args, "1")]), "A lighthouse."])
    assert Agent(model, runtime=runtime).run_sync("What does photo.png show?").text == "A lighthouse."
    result = json.loads(model.requests[-1].messages[-1]["content"])
    assert result == {"answer": "A lighthouse.", "model": f"mock-{dialect}:seer"}


@pytest.mark.skipif(find_spec("playwright") is None, reason="needs the package playwright")
def test_vision_model_can_look_at_the_page_in_the_browser(
    open_models: ModelRuntimes, models: str, server: WebServer
) -> None:
    server.pages["/harbour"] = Page(b"<title>Harbour</title><h1>Lighthouse</h1>")
    runtime = open_models({"vision": {"model": "mock-openai:seer"}, "providers": make_providers(models)})
    session = runtime.session(["vision", "browser"])
    if not runtime.statuses(["browser_navigate"])["browser_navigate"].usable:
        pytest.skip("there is no browser on this machine")
    assert session.call_sync("browser_navigate", {"url": f"{server.url}/harbour"}).ok
    args = {"image": "browser", "question": "What is in the picture?"}
    assert json.loads(session.call_sync("vision_analyze", args).text)["answer"] == "A lighthouse."
    without_browser = runtime.session(["vision"]).call_sync("vision_analyze", args)
    assert "browser" in str(without_browser.error)


def test_image_url_is_downloaded_and_sent_to_the_vision_model_as_base64_data(
    open_models: ModelRuntimes, server: WebServer, tmp_path: Path
) -> None:
    received: list[Json] = []

    def answer(request: Request) -> Page:
        received.append(json.loads(request.body))
        chunk = {"choices": [{"index": 0, "delta": {"content": "A boat."}, "finish_reason": "stop"}]}
        return Page(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

    server.pages["/v1/chat/completions"] = answer
    server.pages["/boat.png"] = Page(PNG, "image/png")
    providers = {"here": {"base_url": f"{server.url}/v1"}}
    runtime = open_models({"vision": {"model": "here:seer"}, "providers": providers})
    result = look(runtime, image=f"{server.url}/boat.png", question="What is it?")
    assert result.ok, result.error
    text, image = received[0]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert received[0]["max_completion_tokens" if "max_completion_tokens" in received[0] else "max_tokens"]


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("missing.png", "missing.png"),
        ("notes.txt", "is not a PNG"),
        ("../../etc/passwd", "outside"),
        ("http://169.254.169.254/latest", "metadata service"),
        ("{server}/missing", "status 404"),
        ("{server}/page", "is not a PNG"),
        ("{server}/boat.png?key=s3cret-model-key", "contains a secret"),
    ],
)
def test_file_that_is_not_a_readable_image_is_not_sent_to_the_vision_model(
    open_models: ModelRuntimes, server: WebServer, tmp_path: Path, image: str, problem: str
) -> None:
    (tmp_path / "notes.txt").write_text("the password is hunter2")
    server.pages["/page"] = Page(b"<html>not an image</html>")
    runtime = open_models({"vision": {"model": "ollama:seer"}})
    assert problem in str(look(runtime, image=image.format(server=server.url)).error)


def test_reason_why_vision_is_unavailable_names_the_missing_model_setting_or_api_key(
    open_models: ModelRuntimes,
) -> None:
    for settings, problem in (
        ({}, "set vision.model or agent.model"),
        ({"vision": {"model": "anthropic:claude-x"}}, "set ANTHROPIC_API_KEY"),
        ({"vision": {"model": "nobody:x"}}, "names no known model provider"),
    ):
        status = open_models(settings).statuses(["vision_analyze"])["vision_analyze"]
        assert not status.available
        assert problem in status.reason


def test_error_states_whether_the_vision_model_timed_out_or_is_unreachable(
    open_models: ModelRuntimes, server: WebServer, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)

    def hang(_request: Request) -> Page:
        server.closing.wait(20)
        return Page(b"")

    server.pages["/slow/chat/completions"] = hang
    for base, problem in (
        (f"{server.url}/slow", "did not answer within 0.5 s"),
        ("http://127.0.0.1:9", "cannot be reached"),
        (f"{server.url}/nothing", "failed"),
    ):
        settings = {
            "vision": {"model": "here:seer", "timeout_seconds": 0.5 if "slow" in base else 60},
            "providers": {"here": {"base_url": base}},
        }
        assert problem in str(look(open_models(settings), image="photo.png").error)


def test_paid_call_of_a_vision_model_needs_approval_unless_the_settings_allow_the_cost(
    open_models: ModelRuntimes, models: str, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(PNG)
    settings: Json = {"vision": {"model": "mock-openai:seer"}, "providers": make_providers(models)}
    args = {"image": "photo.png", "question": "What is in the picture?"}
    refused = look(open_models(settings, approver=None), **args)
    assert "toolfold approvals allow vision_analyze:spend" in str(refused.error)
    destructive = {**settings, "approval": {"allowed_tools": ["tool:vision_analyze"]}}
    assert not look(open_models(destructive, approver=None), **args).ok
    allowed = {**settings, "approval": {"allowed_tools": ["tool:vision_analyze:spend"]}}
    assert look(open_models(allowed, approver=None), **args).ok
    denied = {**allowed, "approval": {**allowed["approval"], "deny": ["tool:vision_analyze"]}}
    assert "approval.deny" in str(look(open_models(denied, approver=None), **args).error)


def test_mixture_of_agents_combines_the_answers_of_several_models(
    open_models: ModelRuntimes, models: str
) -> None:
    mixture = {"models": ["mock-openai:one", "mock-anthropic:two", "mock-responses:broken"]}
    runtime = open_models({"mixture": mixture, "providers": make_providers(models)})
    call = ToolCall("mixture_of_agents", {"prompt": "What is six times seven?"}, "1")
    model = ScriptedProvider([ScriptedReply("", [call]), "42"])
    assert Agent(model, runtime=runtime).run_sync("Ask several models what 6 times 7 is").text == "42"
    result = json.loads(model.requests[-1].messages[-1]["content"])
    assert result["answer"] == "Combined: 42."
    assert result["answered"] == ["mock-openai:one", "mock-anthropic:two"]
    assert "out of order" in result["failed"]["mock-responses:broken"]


def test_mixture_of_agents_returns_all_answers_if_the_combining_model_is_unreachable(
    open_models: ModelRuntimes, models: str
) -> None:
    mixture = {"models": ["mock-openai:one", "mock-anthropic:two"], "aggregator": "nowhere:x"}
    providers = {**make_providers(models), "nowhere": {"base_url": "http://127.0.0.1:9"}}
    runtime = open_models({"mixture": mixture, "providers": providers})
    result = runtime.session(["moa"]).call_sync("mixture_of_agents", {"prompt": "What is six times seven?"})
    answer = json.loads(result.text)
    assert answer["answers"] == {"mock-openai:one": "It is 42.", "mock-anthropic:two": "It is 42."}
    assert "cannot be reached" in answer["note"]


def test_mixture_of_agents_fails_with_the_reason_if_all_models_are_unreachable(
    open_models: ModelRuntimes,
) -> None:
    providers = {"nowhere": {"base_url": "http://127.0.0.1:9"}}
    runtime = open_models({"mixture": {"models": ["nowhere:a", "nowhere:b"]}, "providers": providers})
    result = runtime.session(["moa"]).call_sync("mixture_of_agents", {"prompt": "Hello?"})
    assert "No model answered" in str(result.error)
    status = open_models({"mixture": {"models": ["ollama:a"]}}).statuses(["mixture_of_agents"])
    assert "At least 2 models" in status["mixture_of_agents"].reason


def test_tool_search_finds_the_vision_and_mixture_tools_for_everyday_messages(
    open_models: ModelRuntimes,
) -> None:
    runtime = open_models({})
    assert "vision_analyze" in find(runtime, "what can you see in this screenshot?")
    assert "mixture_of_agents" in find(runtime, "ask several models and combine their answers")
