"""Nobody is asked to approve a call that its tool would refuse anyway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.tools.tool_examples import make_settings
from toolfold import Answer, ApprovalRequest, Runtime, open_runtime
from toolfold.config import load_config
from toolfold.core.types import CallContext, Json

SECRET = "s3cret-value-of-this-machine"


@dataclass
class Questions:
    """An approver that records what it is asked, and allows everything."""

    asked: list[str] = field(default_factory=list)

    def __call__(self, request: ApprovalRequest) -> Answer:
        self.asked.append(request.tool.name)
        return Answer.ONCE


@pytest.fixture
def questions() -> Questions:
    return Questions()


@pytest.fixture
def everything(tmp_path: Path, questions: Questions) -> Iterator[Runtime]:
    """A runtime whose services do not exist; calls end at the first request."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    script = home / "model.json"
    script.write_text('["answer"]')
    env = {
        "TOOLFOLD_HOME": str(home),
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TEAM_URL": "json://127.0.0.1:9/hook",
        "OPENAI_API_KEY": SECRET,
        "HASS_TOKEN": "s3cret-home-token",
    }
    settings = make_settings("http://127.0.0.1:9", f"scripted:{script}")
    settings["speech"] = {"backend": "remote", "url": "http://127.0.0.1:9/speech"}
    with open_runtime(
        load_config(project=project, env=env, overrides=settings), approver=questions
    ) as runtime:
        yield runtime


REFUSED_ANYWAY: list[tuple[str, Json, str]] = [
    ("write_file", {"path": "/etc/cron.d/job", "content": "x"}, "outside the workspace"),
    ("write_file", {"path": ".git/hooks/pre-commit", "content": "x"}, "protected"),
    ("patch", {"path": "../elsewhere/.bashrc", "old": "a", "new": "b"}, "outside the workspace"),
    ("ha_call_service", {"domain": "shell_command", "service": "run"}, "homeassistant.allowed_domains"),
    ("ha_call_service", {"domain": "light", "service": "on", "data": {"a": SECRET}}, "a secret of this"),
    ("image_generate", {"prompt": f"a poster of {SECRET}"}, "a secret of this machine"),
    ("text_to_speech", {"text": "hello", "path": "/tmp/x.wav"}, "outside the workspace"),
    ("send_message", {"target": "team", "text": SECRET}, "a secret of this machine"),
    ("skill_manage", {"action": "delete", "name": "unknown"}, "There is no skill"),
    ("skill_manage", {"action": "create", "name": "boats"}, "needs the argument 'description'"),
    ("cronjob", {"action": "remove", "job": "unknown"}, "unknown"),
    ("cronjob", {"action": "create", "schedule": "at noon-ish", "prompt": "Hi"}, "noon-ish"),
    ("cronjob", {"action": "create", "schedule": "0 9 * * *", "prompt": "x", "toolsets": ["no"]}, "'no'"),
    ("rl_start_training", {"environment": "slow", "parameters": {"rate": 1}}, "no parameter 'rate'"),
    ("rl_stop_training", {"run": "../run"}, "not the id of a training run"),
]


@pytest.mark.parametrize(("tool", "args", "reason"), REFUSED_ANYWAY)
def test_nobody_is_asked_about_a_call_that_the_tool_refuses_anyway(
    everything: Runtime, questions: Questions, tool: str, args: Json, reason: str
) -> None:
    result = everything.session().call_sync(tool, args)
    assert reason in (result.error or "")
    assert questions.asked == []


ASKED_ABOUT: list[tuple[str, Json]] = [
    ("write_file", {"path": ".bashrc", "content": "x"}),
    ("ha_call_service", {"domain": "light", "service": "turn_on"}),
    ("image_generate", {"prompt": "a lighthouse"}),
    ("send_message", {"target": "team", "text": "passed"}),
    ("cronjob", {"action": "create", "schedule": "0 9 * * *", "prompt": "Hi"}),
    ("rl_start_training", {"environment": "slow"}),
]


@pytest.mark.parametrize(("tool", "args"), ASKED_ABOUT)
def test_a_person_is_still_asked_about_calls_of_the_same_tools_that_can_run(
    everything: Runtime, questions: Questions, tool: str, args: Json
) -> None:
    everything.session().call_sync(tool, args)
    assert questions.asked == [tool]


def test_handler_repeats_the_check_because_the_precheck_runs_only_before_a_question(
    everything: Runtime, questions: Questions
) -> None:
    refused = everything.session().call_sync("read_file", {"path": "/etc/hostname"})
    assert "outside the workspace" in (refused.error or "")
    tool = everything.registry.snapshot()["write_file"]
    with pytest.raises(Exception, match="outside the workspace"):
        tool.handler({"path": "/etc/cron.d/job", "content": "x"}, CallContext(session_id="s"))
    assert questions.asked == []
