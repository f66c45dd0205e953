"""Checks of `toolfold doctor` for programs that were connected to the model proxy.

Asks each program's proxy whether it is one and whether its provider answers. Sends no key of a provider.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.cli.doctor_findings import DoctorFinding
from toolfold.core.errors import ConfigError

if TYPE_CHECKING:
    from toolfold.cli.connecting import ApiName, FileChange
    from toolfold.config import Config

PROBE_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 1_000_000
_REFUSED_PATH = "/v1/%5C"
"""A path that every proxy refuses by itself, without asking a provider."""
_ERROR_PREFIX = "toolfold:"


def check_proxy_programs(config: Config) -> Iterator[DoctorFinding]:
    """Report for each program that was connected to the proxy whether its requests reach a provider."""
    from toolfold.cli.connect_proxy import open_proxy_log

    try:
        steps = {(each.client, each.file): each for each in open_proxy_log(config).list_changes()}
    except ConfigError as error:
        yield DoctorFinding("fail", "proxy", str(error))
        return
    for step in steps.values():
        yield _check_program(config, step)


def _check_program(config: Config, step: FileChange) -> DoctorFinding:
    from toolfold.cli.connecting import find_program, find_token_variable, get_setting, open_settings_file

    program, again = find_program(step.client), f"toolfold connect {step.client} --proxy"
    try:
        document = open_settings_file(step.client, Path(step.file)).document
    except ConfigError as error:
        return DoctorFinding("fail", "proxy", f"{program.title}: {error}")
    changed = [path for path, value in step.entry.items() if get_setting(document, path) != value]
    if changed:
        what = f"{program.title} does not use the proxy: {changed[0]} was changed in {step.file}"
        return DoctorFinding("warn", "proxy", what, again)
    token = config.environment.get(find_token_variable(step.entry), "")
    problems = (
        _find_problem(program.title, str(get_setting(document, path)), api, token)
        for path, api in program.url_settings.items()
    )
    working = f"{program.title} uses the proxy, and the provider answers ({step.file})"
    return next(filter(None, problems), DoctorFinding("ok", "proxy", working))


def _find_problem(title: str, url: str, api: ApiName, token: str) -> DoctorFinding | None:
    """Return the reason why a program's requests do not reach a provider; None if they do."""
    root = url.removesuffix("/v1")
    headers = {"anthropic-version": "2023-06-01"} if api == "anthropic" else {}
    headers |= {"x-toolfold-token": token} if token else {}
    try:
        if not _get(root + _REFUSED_PATH, headers).is_from_proxy:
            what = f"{title} sends its model requests to {url}, where a program other than Toolfold answers"
            return DoctorFinding("fail", "proxy", what, "toolfold serve")
    except (OSError, ValueError, http.client.HTTPException):
        what = f"{title} sends its model requests to {url}, but no proxy is running there"
        return DoctorFinding("fail", "proxy", what, _start_advice(root))
    try:
        answer = _get(f"{root}/v1/models", headers)
    except (OSError, ValueError, http.client.HTTPException) as error:
        answer = _Answer(504, f"{_ERROR_PREFIX} {type(error).__name__}")
    if answer.is_from_proxy and answer.status == 401:
        what = f"the proxy that {title} uses needs a token, so its provider was not checked"
        return DoctorFinding("info", "proxy", what)
    if answer.is_from_proxy and answer.status >= 500:
        what = f"{title} uses the proxy, but the provider does not answer: {answer.problem}"
        return DoctorFinding("fail", "proxy", what)
    return None


def _start_advice(url: str) -> str:
    return f"toolfold serve --port {urlsplit(url).port or 80}"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    message: str
    """The error message; empty if the response is not an error."""

    @property
    def is_from_proxy(self) -> bool:
        """Return True if an error response comes from the proxy, not from the provider."""
        return self.message.startswith(_ERROR_PREFIX)

    @property
    def problem(self) -> str:
        return self.message.removeprefix(_ERROR_PREFIX).strip()


def _get(url: str, headers: Mapping[str, str]) -> _Answer:
    """Send a GET request and return the response. Raises OSError, ValueError or HTTPException."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", parts.path, headers=dict(headers))
        response = connection.getresponse()
        return _Answer(response.status, _read_message(response.read(_MAX_ANSWER_BYTES)))
    finally:
        connection.close()


def _read_message(body: bytes) -> str:
    """Return the error message in an OpenAI or Anthropic response body; empty if there is none."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
