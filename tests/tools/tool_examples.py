"""One natural message and one call for every built-in tool, and a run of all of them by an agent."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.internet.web_server import Page, WebServer, run_web_server
from toolfold import Answer, Runtime, ToolCall, open_runtime
from toolfold.agent import Agent, AgentLimits
from toolfold.config import load_config
from toolfold.core.events import Event, ToolFinished
from toolfold.core.types import Json
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step

SELECTED_TOOLS = 8
"""The default of `tools.rag_top_k`: so many tools are selected for a message."""
PNG = b"\x89PNG\r\n\x1a\n rest of the image"
FORM = b"""<title>Form</title><h1>Order</h1><label>Name <input></label><a href="/next">Next page</a>
<img src="/photo.png" alt="a cat" width=10 height=10>"""
ARTICLE = b"""<!DOCTYPE html><html><head><title>Lighthouses</title></head><body><article><h1>Lighthouses</h1>
<p>Lighthouses guide ships along the coast at night, and many of them are still in use today.</p>
<p>The light turns, so that sailors can tell one tower from another by the rhythm of its flashes.</p>
</article></body></html>"""
ENTITY = {"entity_id": "light.desk", "state": "on", "attributes": {"friendly_name": "Desk lamp"}}
SERVICES = [{"domain": "light", "services": {"turn_on": {"description": "Turn on.", "fields": {}}}}]
SLOW = "import time; print('reward=0.5', flush=True); time.sleep(600)"
REPORT = "The report of the sub-agent."

Arguments = Json | Callable[[str], Json]


@dataclass(frozen=True, slots=True)
class Example:
    """A message of a user who needs a tool, and the arguments of a call.

    `{server}` in the arguments stands for the URL of the test's web server. Arguments may be a function of
    all earlier results, for references that only these contain.
    """

    tool: str
    message: str
    arguments: Arguments
    reply_after: str = ""
    """Reply of the model to a sub-agent that the call starts."""


def find_ref(element: str) -> Callable[[str], Json]:
    """Return a function that finds the newest reference of an element in page snapshots."""

    def find(results: str) -> Json:
        found = re.findall(rf"- {re.escape(element)}.*?\[ref=((?:f\d+)?e\d+)\]", results)
        return {"ref": found[-1] if found else "e0"}

    return find


def find_run(results: str) -> Json:
    """Return the id of the newest training run in the results."""
    found = re.findall(r"slow-\d{8}-\d{6}-\w+", results)
    return {"run": found[-1] if found else "none"}


EXAMPLES: Sequence[Example] = (
    Example("write_file", "save this note as notes.txt", {"path": "notes.txt", "content": "four boats\n"}),
    Example("read_file", "what does notes.txt say?", {"path": "notes.txt"}),
    Example(
        "patch", "replace four by five in notes.txt", {"path": "notes.txt", "old": "four", "new": "five"}
    ),
    Example("search_files", "where is the word boats used in this project?", {"pattern": "boats"}),
    Example("terminal", "run the shell command uname -s", {"command": "uname -s"}),
    Example("process", "which background processes are running?", {"action": "list"}),
    Example("execute_code", "run this Python code for me", {"code": "print(6 * 7)"}),
    Example(
        "todo",
        "make a plan with steps and track what is done",
        {"todos": [{"id": "1", "content": "look", "status": "pending"}]},
    ),
    Example("memory", "remember that I prefer metric units", {"action": "add", "content": "metric units"}),
    Example("session_search", "what did we discuss in an earlier session about boats?", {"query": "boats"}),
    Example(
        "delegate_task", "hand this task over to a sub-agent", {"goal": "Count the boats"}, reply_after=REPORT
    ),
    Example("clarify", "ask me which colour I want before you go on", {"question": "Which colour?"}),
    Example("web_search", "search the web for lighthouses", {"query": "lighthouses"}),
    Example("web_extract", "read this web page and summarise it", {"urls": ["{server}/page"]}),
    Example("browser_navigate", "open this website in the browser", {"url": "{server}/form"}),
    Example("browser_snapshot", "what is on the page that is open in the browser?", {}),
    Example(
        "browser_type",
        "type my name into the form field on the page",
        lambda results: {**find_ref('textbox "Name"')(results), "text": "Ana"},
    ),
    Example("browser_press", "press the tab key in the browser", {"key": "Tab"}),
    Example("browser_scroll", "scroll down on the web page", {"direction": "down"}),
    Example("browser_images", "which images are on the open web page?", {}),
    Example("browser_console", "show the console messages of the web page", {}),
    Example("browser_screenshot", "take a screenshot of the web page", {}),
    Example("browser_click", "click the link on the web page", find_ref('link "Next page"')),
    Example("browser_back", "go back to the previous page in the browser", {}),
    Example("browser_close", "close the browser", {}),
    Example("send_message", "tell the team that the build passed", {"target": "team", "text": "passed"}),
    Example(
        "skill_manage",
        "save what you just did as a new skill for next time",
        {"action": "create", "name": "boats", "description": "Count boats", "instructions": "Count them."},
    ),
    Example("skills_list", "which skills do you have?", {}),
    Example("skill_view", "open the skill for release notes and follow it", {"name": "boats"}),
    Example("text_to_speech", "read this text aloud and save it as audio", {"text": "hello"}),
    Example("image_generate", "draw me a picture of a lighthouse", {"prompt": "a lighthouse"}),
    Example("vision_analyze", "what can you see in this photo?", {"image": "photo.png"}),
    Example("mixture_of_agents", "ask several models and combine their answers", {"prompt": "Is 91 prime?"}),
    Example(
        "cronjob",
        "remind me every monday at 9 to send the report",
        {"action": "create", "schedule": "0 9 * * 1", "prompt": "Remind me of the report"},
    ),
    Example("cronjob_list", "which jobs are scheduled, and when do they run next?", {}),
    Example("ha_list_entities", "which smart home devices do I have?", {}),
    Example("ha_get_state", "is the lamp on the desk switched on?", {"entity_id": "light.desk"}),
    Example("ha_list_services", "what can home assistant do with my lights?", {"domain": "light"}),
    Example(
        "ha_call_service",
        "turn on the light in the living room",
        {"domain": "light", "service": "turn_on", "entity_id": ["light.desk"]},
    ),
    Example("rl_list_environments", "which reinforcement learning environments can I train in?", {}),
    Example("rl_configure", "set the learning rate for the next training run", {"environment": "slow"}),
    Example(
        "rl_start_training",
        "start training the model with reinforcement learning",
        {"environment": "slow"},
    ),
    Example("rl_list_runs", "list all my training runs", {}),
    Example("rl_check_status", "how is the training run going?", find_run),
    Example("rl_stop_training", "stop the training run", find_run),
    Example("rl_get_results", "what were the final metrics of the training?", find_run),
)


@contextmanager
def open_everything(
    home: Path, project: Path, *, selection: str = "auto"
) -> Iterator[tuple[Runtime, WebServer]]:
    """Open a runtime in which every built-in tool can work, as far as its programs are installed."""
    with run_web_server() as server:
        serve_pages(server)
        (project / "photo.png").write_bytes(PNG)
        script = home / "model.json"
        script.write_text(json.dumps(["A lighthouse; 91 is 7 times 13."]))
        env = {
            "TOOLFOLD_HOME": str(home),
            "HOME": str(home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TEAM_URL": f"json://127.0.0.1:{server.port}/hook",
            "OPENAI_API_KEY": "s3cret-image-key",
            "HASS_TOKEN": "s3cret-home-token",
        }
        settings = make_settings(server.url, f"scripted:{script}") | {"tools.selection": selection}
        config = load_config(project=project, env=env, overrides=settings)
        with open_runtime(config, approver=lambda _: Answer.ONCE) as runtime:
            yield runtime, server


def make_settings(url: str, model: str) -> Json:
    return {
        "tools": {"patience_seconds": 600.0},
        "web": {"private_networks": ["127.0.0.0/8"], "search": {"backend": "searxng", "url": url}},
        "messages": {"targets": {"team": {"url_env": "TEAM_URL"}}},
        "images": {"url": f"{url}/images"},
        "speech": {"backend": "espeak"},
        "vision": {"model": model},
        "mixture": {"models": [model, model]},
        "homeassistant": {"url": url},
        "training": {"environments": {"slow": {"command": [sys.executable, "-c", SLOW]}}},
    }


def serve_pages(server: WebServer) -> None:
    """Answer like a search service, an image service, a Home Assistant server and a website."""
    results = {"results": [{"title": "Lighthouse", "url": f"{server.url}/page", "content": "A tower."}]}
    images = {"data": [{"b64_json": "iVBORw0KGgogcmVzdA=="}]}
    answers: dict[str, object] = {"/search": results, "/images": images, "/api/states": [ENTITY]}
    answers |= {"/api/states/light.desk": ENTITY, "/api/services": SERVICES}
    answers |= {"/api/services/light/turn_on": [ENTITY]}
    for path, value in answers.items():
        server.pages[path] = Page(json.dumps(value).encode(), "application/json")
    server.pages["/page"] = Page(ARTICLE)
    server.pages |= {"/form": Page(FORM), "/next": Page(b"<title>Next</title>"), "/hook": Page(b"ok")}
    server.pages["/photo.png"] = Page(PNG, "image/png")


def call_all_tools(runtime: Runtime, server: WebServer) -> dict[str, str]:
    """Let an agent with a scripted model call every tool; return the problem of each, empty if it worked."""
    steps: list[Step] = []
    for example in EXAMPLES:
        steps.append(_make_step(example, server.url))
        steps += [example.reply_after] if example.reply_after else []
    finished: dict[str, str] = {}

    def note(event: Event) -> None:
        if isinstance(event, ToolFinished):
            finished[event.tool] = event.error or ""

    agent = Agent(
        ScriptedProvider([*steps, "Done."]),
        runtime=runtime,
        limits=AgentLimits(max_steps=200, max_cost=0),
        asker=lambda _question: "blue",
        context_tokens=1_000_000,
    )
    unsubscribe = runtime.events.subscribe(note)
    with agent:
        assert agent.run_sync("Try every tool.").text == "Done."
    unsubscribe()
    return finished


def _make_step(example: Example, url: str) -> Callable[[ModelRequest], ScriptedReply]:
    def reply(request: ModelRequest) -> ScriptedReply:
        results = "\n".join(str(each["content"]) for each in request.messages if each["role"] == "tool")
        arguments = example.arguments
        made = arguments(results.replace('\\"', '"')) if callable(arguments) else arguments
        text = json.dumps(made).replace("{server}", url)
        return ScriptedReply("", [ToolCall(example.tool, text, f"call-{example.tool}")])

    return reply


def find_missed_tools(runtime: Runtime) -> dict[str, list[str]]:
    """Return the tools that are not selected for their message, with those that are."""
    snapshot = runtime.registry.snapshot()
    found = {
        each.tool: [
            hit.name
            for hit in runtime.retriever.answer(
                snapshot, each.message, mode="hybrid", limit=SELECTED_TOOLS
            ).hits
        ]
        for each in EXAMPLES
    }
    return {tool: names for tool, names in found.items() if tool not in names}
