"""The tool `image_generate`, with an image service on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.internet.web_server import Page, WebServer, run_web_server
from toolfold import Answer, Runtime, ToolCall, ToolResult, open_runtime
from toolfold.agent import Agent
from toolfold.config import load_config
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

PNG = b"\x89PNG\r\n\x1a\n rest of the image"
ENCODED = base64.b64encode(PNG).decode()


class ImageRuntimes(Protocol):
    """Opens runtimes with settings of the section `images`."""

    def __call__(self, **images: object) -> Runtime: ...


@pytest.fixture
def open_images(home: Path, tmp_path: Path) -> Iterator[ImageRuntimes]:
    with ExitStack() as stack:

        def open_here(**images: object) -> Runtime:
            env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "IMAGE_KEY": "s3cret-image-key"}
            overrides = {
                "images": {"key_env": "IMAGE_KEY", **images},
            }
            return stack.enter_context(
                open_runtime(
                    load_config(project=tmp_path, env=env, overrides=overrides),
                    approver=lambda _request: Answer.ONCE,
                )
            )

        yield open_here


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with run_web_server() as running:
        yield running


@pytest.fixture(autouse=True)
def forget_requests(server: WebServer) -> None:
    server.requests.clear()


def make_answer(value: object) -> Page:
    return Page(json.dumps(value).encode(), "application/json")


def generate(runtime: Runtime, **args: Any) -> ToolResult:
    return runtime.session(["image_gen"]).call_sync("image_generate", args)


def test_agent_generates_an_image_through_the_openai_image_api(
    open_images: ImageRuntimes, server: WebServer, tmp_path: Path
) -> None:
    server.pages["/v1/images/generations"] = make_answer({"data": [{"b64_json": ENCODED}]})
    runtime = open_images(url=f"{server.url}/v1/images/generations")
    found = runtime.retriever.answer(
        runtime.registry.snapshot(), "draw me a picture of a lighthouse", mode="hybrid", limit=3
    )
    assert "image_generate" in [hit.name for hit in found.hits]
    calls = [
        ToolCall("image_generate", {"prompt": "a lighthouse", "shape": "portrait", "name": "light"}, "1")
    ]
    agent = Agent(ScriptedProvider([ScriptedReply("", calls), "Done."]), runtime=runtime)
    assert agent.run_sync("Draw a lighthouse").text == "Done."
    assert (tmp_path / "light.png").read_bytes() == PNG
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer s3cret-image-key"
    expected = {"prompt": "a lighthouse", "model": "gpt-image-1", "n": 1, "size": "1024x1536"}
    assert json.loads(request.body) == expected


def test_generated_image_does_not_replace_an_existing_file(
    open_images: ImageRuntimes, server: WebServer, tmp_path: Path
) -> None:
    server.pages["/images"] = make_answer({"data": [{"b64_json": ENCODED}]})
    (tmp_path / "image.png").write_bytes(b"a photo of the user")
    runtime = open_images(url=f"{server.url}/images")
    written = [json.loads(generate(runtime, prompt="a boat").text)["files"] for _ in range(2)]
    assert written == [["image-2.png"], ["image-3.png"]]
    assert (tmp_path / "image.png").read_bytes() == b"a photo of the user"


def test_image_generation_that_costs_money_needs_approval(
    home: Path, tmp_path: Path, server: WebServer
) -> None:
    env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "OPENAI_API_KEY": "s3cret-image-key"}
    overrides = {"images": {"url": f"{server.url}/images"}, "web": {"private_networks": ["127.0.0.0/8"]}}
    with open_runtime(load_config(project=tmp_path, env=env, overrides=overrides)) as runtime:
        assert "charges for each call" in str(generate(runtime, prompt="a boat").error)
    assert server.requests == []


def test_images_generated_by_fal_are_downloaded_without_sending_the_api_key(
    open_images: ImageRuntimes, server: WebServer, tmp_path: Path
) -> None:
    server.pages["/fal-ai/flux/schnell"] = make_answer(
        {"images": [{"url": f"{server.url}/{n}"} for n in "ab"]}
    )
    server.pages |= {"/a": Page(PNG, "image/png"), "/b": Page(b"\xff\xd8\xff jpeg", "image/jpeg")}
    result = generate(open_images(interface="fal", url=server.url), prompt="two boats", count=2)
    assert result.ok, result.error
    assert json.loads(result.text)["files"] == ["image-1.png", "image-2.jpg"]
    first, *others = server.requests
    assert first.headers["authorization"] == "Key s3cret-image-key"
    assert json.loads(first.body)["num_images"] == 2
    assert all("authorization" not in each.headers for each in others)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (Page(b'{"error": "blocked"}', status=400), "status 400"),
        (Page(b"<html>", "text/html"), "not valid JSON"),
        (make_answer({"data": []}), "returned no image"),
        (make_answer({"data": [{"b64_json": "%%%"}]}), "not valid base64"),
        (make_answer({"data": [{"b64_json": base64.b64encode(b"#!/bin/sh").decode()}]}), "not a PNG"),
        (make_answer({"data": [{"url": "http://169.254.169.254/latest"}]}), "metadata service"),
    ],
)
def test_no_file_is_written_if_the_image_service_fails_or_sends_an_invalid_image(
    open_images: ImageRuntimes, server: WebServer, tmp_path: Path, page: Page, problem: str
) -> None:
    server.pages["/images"] = page
    assert problem in str(generate(open_images(url=f"{server.url}/images"), prompt="a boat").error)
    assert list(tmp_path.iterdir()) == []


def test_error_names_the_missing_api_key_of_the_image_service(open_images: ImageRuntimes) -> None:
    status = open_images(key_env="", interface="fal").statuses(["image_generate"])["image_generate"]
    assert not status.available
    assert "set FAL_KEY" in status.reason
