"""The tool `send_message`, with a receiver on this machine."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conftest import RuntimeOpener
from tests.internet.web_server import Page, WebServer, run_web_server
from toolfold import Answer, ApprovalRequest, Runtime, open_runtime
from toolfold.config import load_config
from toolfold.core.types import Approver

pytest.importorskip("apprise", reason="needs the package apprise")

# Apprise imports a module that newer versions of Python no longer have.
pytestmark = pytest.mark.filterwarnings("ignore:.*imghdr.*:DeprecationWarning")

TARGETS = {
    "team": {"url_env": "TEAM_URL", "description": "the whole team"},
    "ana": {"url_env": "ANA_URL"},
}


class MessageRuntimes(Protocol):
    """Opens runtimes with two message targets and a given approver."""

    def __call__(
        self, approver: Approver | None, environment: Mapping[str, str], **settings: object
    ) -> Runtime: ...


@pytest.fixture
def server() -> Iterator[WebServer]:
    with run_web_server() as running:
        running.pages["/hook/s3cr3t-part"] = Page(b"ok")
        yield running


@pytest.fixture
def open_runtimes(home: Path, tmp_path: Path) -> Iterator[MessageRuntimes]:
    with ExitStack() as stack:

        def open_here(
            approver: Approver | None, environment: Mapping[str, str], **settings: object
        ) -> Runtime:
            env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), **environment}
            overrides = {"messages": {"targets": TARGETS}, **settings}
            config = load_config(project=tmp_path, env=env, overrides=overrides)
            return stack.enter_context(open_runtime(config, approver=approver))

        yield open_here


def target_url(server: WebServer) -> str:
    return f"json://127.0.0.1:{server.port}/hook/s3cr3t-part"


def approve(_request: ApprovalRequest) -> Answer:
    return Answer.ONCE


def send(runtime: Runtime, **args: Any) -> Any:
    return runtime.session(["messaging"]).call_sync("send_message", args)


def test_approved_message_is_delivered_to_its_target(
    open_runtimes: MessageRuntimes, server: WebServer
) -> None:
    asked: list[ApprovalRequest] = []

    def approver(request: ApprovalRequest) -> Answer:
        asked.append(request)
        return Answer.ONCE

    runtime = open_runtimes(approver, {"TEAM_URL": target_url(server)})
    result = send(runtime, target="team", text="The tests *passed*.", title="Build")
    assert result.ok, result.error
    assert json.loads(result.text) == {"sent": True, "target": "team"}
    (request,) = server.requests
    received = json.loads(request.body)
    assert (received["title"], received["message"]) == ("Build", "The tests *passed*.")
    assert "sends a message to other people" in asked[0].reason
    assert asked[0].args["text"] == "The tests *passed*."


def test_files_of_the_workspace_are_attached_to_a_message(
    open_runtimes: MessageRuntimes, server: WebServer, tmp_path: Path
) -> None:
    (tmp_path / "report.txt").write_text("all green")
    runtime = open_runtimes(approve, {"TEAM_URL": target_url(server), "OWN_KEY": "s3cret-own-key-value"})
    assert send(runtime, target="team", text="Done.", files=["report.txt"]).ok
    (attached,) = json.loads(server.requests[-1].body)["attachments"]
    assert attached["filename"] == "report.txt"
    assert base64.b64decode(attached["base64"]) == b"all green"


def test_message_with_a_file_that_may_not_be_sent_is_refused(
    open_runtimes: MessageRuntimes, server: WebServer, tmp_path: Path
) -> None:
    (tmp_path / "key.txt").write_text("it is s3cret-own-key-value")
    environment = {"TEAM_URL": target_url(server), "OWN_KEY": "s3cret-own-key-value"}
    runtime = open_runtimes(approve, environment | {"ANA_URL": "dbus://"})
    for file, problem in {
        "key.txt": "contains a secret",
        "/etc/passwd": "outside",
        "missing.txt": "missing.txt",
    }.items():
        assert problem in str(send(runtime, target="team", text="Done.", files=[file]).error)
    assert server.requests == []


@pytest.mark.parametrize("approver", [None, lambda _request: Answer.DENY])
def test_message_without_approval_is_not_sent(
    open_runtimes: MessageRuntimes, server: WebServer, approver: Approver | None
) -> None:
    result = send(open_runtimes(approver, {"TEAM_URL": target_url(server)}), target="team", text="hi")
    assert "was not run" in result.error
    assert server.requests == []


def test_send_message_schema_lists_the_targets_without_their_urls(
    open_runtimes: MessageRuntimes, server: WebServer
) -> None:
    runtime = open_runtimes(None, {"TEAM_URL": target_url(server)})
    (definition,) = runtime.session(["messaging"]).definitions()
    target = definition["function"]["parameters"]["properties"]["target"]
    assert target["enum"] == ["team", "ana"]
    assert target["description"] == "team: the whole team"
    assert "json://" not in json.dumps(definition)


@pytest.mark.parametrize("target", ["nobody", "json://127.0.0.1/"])
def test_model_cannot_send_a_message_to_a_target_that_is_not_configured(
    open_runtimes: MessageRuntimes, server: WebServer, target: str
) -> None:
    result = send(open_runtimes(approve, {"TEAM_URL": target_url(server)}), target=target, text="hi")
    assert not result.ok
    assert server.requests == []


def test_errors_and_logs_do_not_contain_the_url_of_a_message_target(
    open_runtimes: MessageRuntimes, server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.pages["/hook/s3cr3t-part"] = Page(b"no", status=500)
    environment = {"TEAM_URL": target_url(server), "ANA_URL": "s3cr3t-part is no url"}
    runtime = open_runtimes(approve, environment)
    with caplog.at_level(logging.INFO):
        rejected = send(runtime, target="team", text="hi")
        invalid = send(runtime, target="ana", text="hi")
    assert "was not delivered" in rejected.error
    assert "not a valid Apprise URL" in invalid.error
    assert "s3cr3t-part" not in rejected.text + invalid.text + caplog.text


def test_error_names_the_missing_environment_variable_of_a_message_target(
    open_runtimes: MessageRuntimes, server: WebServer
) -> None:
    result = send(open_runtimes(approve, {"TEAM_URL": target_url(server)}), target="ana", text="hi")
    assert "ANA_URL is not set" in result.error


def test_secret_from_the_environment_is_not_sent_in_a_message(
    open_runtimes: MessageRuntimes, server: WebServer
) -> None:
    environment = {"TEAM_URL": target_url(server), "MY_API_KEY": "k3y-of-mine"}
    runtime = open_runtimes(approve, environment)
    for text in ("the key is k3y-of-mine", f"the hook is {target_url(server)}"):
        assert "contains a secret" in send(runtime, target="team", text=text).error
    assert server.requests == []


def test_send_message_is_listed_only_if_at_least_one_message_target_is_usable(
    open_runtimes: MessageRuntimes, open_test_runtime: RuntimeOpener
) -> None:
    for runtime, reason in (
        (open_test_runtime(), "messages.targets"),
        (open_runtimes(None, {}), "set the environment variable TEAM_URL or ANA_URL"),
    ):
        assert runtime.session(["messaging"]).definitions() == []
        assert reason in runtime.statuses(["send_message"])["send_message"].reason


def test_send_message_is_a_core_tool_and_its_effects_are_send_and_network(runtime: Runtime) -> None:
    tool = runtime.registry.snapshot()["send_message"]
    assert tool.core
    assert tool.effects == {"send", "network"}
    assert "send_message" in runtime.resolve_toolset("toolfold-messaging")


def test_project_settings_cannot_add_message_targets(
    open_test_runtime: RuntimeOpener, tmp_path: Path
) -> None:
    (tmp_path / "toolfold.yaml").write_text("messages:\n  targets:\n    evil: {url_env: HOME}\n")
    assert open_test_runtime(trusted=True).config.messages.targets == {}
