"""Start, monitor and stop training runs of an external trainer over HTTP.

POST {url}/runs              {"environment": …, "parameters": {…}}  → {"id": …}
GET  {url}/runs/{id}         → {"state": …, "metrics": {…}, "log": …}
POST {url}/runs/{id}/stop    → {"state": …}
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolfold.core.types import Json
from toolfold.tools.internet.service_client import ServiceClient
from toolfold.tools.training.training_runs import METRIC_NAME, TrainingFailed

STATES = ("queued", "starting", "running", "completed", "failed", "stopped", "timed_out")
MAX_METRICS = 50
_RUN_ID = re.compile(r"(?!\.+\Z)[\w.-]{1,80}")


@dataclass(frozen=True, slots=True)
class HttpTrainer:
    """HTTP client for one external trainer."""

    url: str
    key: str
    service: ServiceClient

    async def start(self, environment: str, parameters: Json) -> str:
        """Start a training run and return the id assigned by the trainer."""
        payload = {"environment": environment, "parameters": parameters}
        run_id = (await self._request("/runs", method="POST", payload=payload)).get("id")
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise TrainingFailed("The trainer returned no valid id for the new training run.")
        return run_id

    async def read(self, run_id: str) -> Json:
        """Return the state, the metrics and the end of the log of a training run."""
        return _check_run(await self._request(f"/runs/{_check_id(run_id)}"))

    async def stop(self, run_id: str) -> Json:
        """Stop a training run."""
        return _check_run(await self._request(f"/runs/{_check_id(run_id)}/stop", method="POST", payload={}))

    async def _request(self, path: str, *, method: str = "GET", payload: Json | None = None) -> Json:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return await self.service.request_object(
            f"{self.url.rstrip('/')}{path}", method=method, payload=payload, headers=headers
        )


def _check_id(run_id: str) -> str:
    """Return a run's id if it is valid in a URL path. Raises TrainingFailed if it is not."""
    if not _RUN_ID.fullmatch(run_id):
        raise TrainingFailed(f"{run_id[:80]!r} is not the id of a training run.")
    return run_id


def _check_run(answer: Json) -> Json:
    state = answer.get("state")
    if state not in STATES:
        raise TrainingFailed(f"The trainer reports the unknown state {str(state)[:40]!r}.")
    metrics = answer.get("metrics")
    numbers = {
        name: value
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if isinstance(value, (int, float)) and not isinstance(value, bool) and METRIC_NAME.fullmatch(name)
    }
    log = answer.get("log")
    return {
        "state": state,
        "metrics": dict(list(numbers.items())[:MAX_METRICS]),
        "log": log if isinstance(log, str) else "",
    }
