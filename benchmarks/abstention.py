"""Count how often Toolfold and other retrievers return no tool, for messages that need none and for requests.

    python benchmarks/abstention.py --peers DIR --peer-python PATH --json FILE

The messages are those of the sample catalog: 25 that no tool serves, such as "thanks", and 164 requests. An
adapter may set a retriever's threshold; the result is that of the retriever as the adapter configures it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from toolfold import Runtime, load_config, open_runtime, sample_catalog

SAMPLE = Path(__file__).parent.parent / "src" / "toolfold" / "sample"
WORKER = Path(__file__).parent / "measuring" / "peer_worker.py"
SECONDS = 120


def measure_peer(peer: str, adapters: Path, python: Path) -> dict[str, Any] | None:
    """Return how many messages a retriever answered with tools; None if it failed or took too long."""
    messages = [json.loads(line) for line in (SAMPLE / "queries.jsonl").read_text("utf-8").splitlines()]
    job = {
        "adapters": str(adapters),
        "peer": peer,
        "catalog": str(SAMPLE / "catalog.jsonl"),
        "messages": {each["id"]: each["query"] for each in messages},
        "count": 8,
        "seconds": SECONDS,
        "all": True,
    }
    with tempfile.TemporaryDirectory() as directory:
        given, answer = Path(directory, "job.json"), Path(directory, "answer.json")
        given.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [str(python), str(WORKER), str(given), str(answer)], capture_output=True, check=False
        )
        if done.returncode != 0:
            return None
        ranked = json.loads(answer.read_text(encoding="utf-8"))["ranked"]
    return count_answers(messages, {number for number, hits in ranked.items() if hits})


def measure_ours() -> dict[str, Any]:
    """Return for how many messages a session with default settings and `selection: hybrid` selects tools."""
    messages = [json.loads(line) for line in (SAMPLE / "queries.jsonl").read_text("utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as home:
        settings = ["tools.selection=hybrid", "tools.patience_seconds=600"]
        environment = {"TOOLFOLD_HOME": home, "HOME": home}
        config = load_config(project=Path(home), env=environment, overrides=settings)
        with open_runtime(config) as runtime:
            tools = sample_catalog()
            runtime.registry.add_all(tools)
            toolsets = sorted({tool.toolset for tool in tools})
            names = {
                tool.name for tool in tools
            }  # without the bridge tools, which do not depend on the message
            answered = {
                each["id"] for each in messages if names & send_message(runtime, toolsets, each["query"])
            }
    return count_answers(messages, answered)


def send_message(runtime: Runtime, toolsets: list[str], message: str) -> set[str]:
    """Return the names of the tools that a new session sends with its first message."""
    return {each["function"]["name"] for each in runtime.session(toolsets).definitions(message)}


def count_answers(messages: list[dict[str, Any]], answered: set[str]) -> dict[str, Any]:
    """Return the counts of messages with and without an answer, by whether they need a tool."""
    needless = [each["id"] for each in messages if not each["gold"]]
    requests = [each["id"] for each in messages if each["gold"]]
    return {
        "needless": len(needless),
        "needless_answered": len(answered & set(needless)),
        "requests": len(requests),
        "requests_unanswered": len(set(requests) - answered),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args()
    # An adapter is a module that other modules do not import, with a function `build`.
    names = sorted(each.stem for each in chosen.peers.glob("*.py") if "def build(" in each.read_text("utf-8"))
    found: dict[str, dict[str, Any] | None] = {"default": measure_ours()}
    found |= {name: measure_peer(name, chosen.peers, chosen.peer_python) for name in names}
    chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, figures in found.items():
        print(name, figures)


if __name__ == "__main__":
    main()
