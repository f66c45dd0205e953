"""The servers page: add, test, enable, disable, log in to and remove MCP servers, and read their logs.

Changes are written to the user's settings, as by `toolfold mcp`, and take effect at once. Those that start a
command or connect to a URL are only proposed: the user confirms them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from toolfold.config import read_file_value, set_value, unset_value
from toolfold.config.record import SettingsRecord
from toolfold.config.servers_settings import parse_server_settings
from toolfold.core.errors import ConfigError, error_message
from toolfold.core.types import Json
from toolfold.mcp.faults import ServerFailed
from toolfold.mcp.importing import find_literal_secrets, normalise_server_name, redact_settings
from toolfold.serving.dashboard.confirmations import ProposedChange
from toolfold.serving.dashboard.overview_routes import describe_servers
from toolfold.serving.dashboard.texts import (
    remove_known_secrets,
    show_exact_line,
    show_line,
    show_name,
    show_text,
)
from toolfold.serving.gateway.request_bodies import RequestRefused

if TYPE_CHECKING:
    from toolfold.mcp.tool_listing import Listing
    from toolfold.runtime.runtime import Runtime
    from toolfold.safety.redaction import Redaction

log = logging.getLogger(__name__)

MAX_LOG_BYTES = 64_000
MAX_LOG_LINES = 300
MAX_TARGET_CHARS = 4_000
MAX_CONFIRMED_CHARS = 100_000
"""Characters of settings on the confirmation page: enough to hide nothing of what can be entered."""
SERVERS_PAGE = "/ui/servers"
MAX_TEST_SECONDS = 60.0
MAX_TESTS = 4
"""Servers that are tested at the same time."""
LOGIN_TIMEOUT_S = 300.0
LOGIN_START_TIMEOUT_S = 30.0


class ServerAdmin:
    """Shows and changes the MCP servers of a runtime. Methods block unless they are coroutines."""

    def __init__(self, runtime: Runtime, redact: Redaction) -> None:
        self._runtime, self._redact = runtime, redact
        self._logins: set[asyncio.Task[Exception | None]] = set()
        self._tests: dict[str, asyncio.Task[Listing]] = {}
        self._login_problems: dict[str, str] = {}
        """Server → why the last login has failed."""

    def list_servers(self) -> Json:
        """Return every configured server with its state and its settings, without secrets."""
        config = self._runtime.config
        states = {each["name"]: each for each in describe_servers(self._runtime, self._redact)}
        off = {
            "state": "off",
            "tools": 0,
            "held": 0,
            "error": "",
            "protocol": "",
            "seconds": 0,
            "next_try": 0,
        }
        return {
            "servers": [
                {
                    **off,
                    **states.get(name, {}),
                    "name": name,
                    "error": self._find_problem(name, states.get(name, {})),
                    "enabled": settings.enabled,
                    "target": self._describe_target(settings.model_dump(mode="json", exclude_defaults=True)),
                    "is_remote": settings.effective_transport != "stdio",
                    "is_own": self._is_own(name),
                    "trust": settings.trust,
                }
                for name, settings in config.mcp.servers.items()
            ]
        }

    def _find_problem(self, name: str, state: Json) -> str:
        """Return the error of the last login to a server if it failed, otherwise the server's own error."""
        if state.get("state") == "up":  # the user may have logged in with the command line
            self._login_problems.pop(name, None)
        return self._login_problems.get(name) or str(state.get("error", ""))

    def _describe_target(self, settings: Mapping[str, Any]) -> str:
        shown = redact_settings(settings)
        words = shown.get("url") or shlex.join(
            [str(shown.get("command", "")), *map(str, shown.get("args", ()))]
        )
        return show_line(self._redact(words))

    def _is_own(self, name: str) -> bool:
        """Return True if the user's settings file defines the server, so that the dashboard can change it."""
        return read_file_value(self._runtime.config.paths.user_file, f"mcp.servers.{name}") is not None

    def add(self, body: Mapping[str, Any]) -> ProposedChange:
        """Propose to add a server by its URL or its command. Raises RequestRefused."""
        name, target = str(body.get("name") or "").strip(), str(body.get("target") or "").strip()
        env = str(body.get("env") or "")
        if not target or len(target) > MAX_TARGET_CHARS:
            raise RequestRefused(400, "Enter the URL of the server, or the command that starts it.")
        if len(env) > MAX_TARGET_CHARS:
            raise RequestRefused(400, f"The variables are longer than {MAX_TARGET_CHARS:,} characters.")
        if not name or normalise_server_name(name) != name:
            raise RequestRefused(
                400, f"This is not a valid name. Try {normalise_server_name(name or 'server')!r}."
            )
        self._require_free_name(name)
        settings = _parse_target(target, env)
        if secrets := find_literal_secrets(settings):
            raise RequestRefused(
                400,
                f"{', '.join(secrets)} contains a secret in plain text. Write ${{NAME}}, and set the"
                " environment variable NAME before you start Toolfold.",
            )

        def write() -> str:
            self._require_free_name(name)
            self._write(f"mcp.servers.{name}", settings)
            return ""

        return self._propose(f"Add the server {name}?", settings, "Add the server", write)

    def _propose(
        self, title: str, settings: Mapping[str, Any], button: str, apply: Callable[[], str]
    ) -> ProposedChange:
        """Return a change that lets a server with these settings run; the user sees all of them."""
        details = {"URL": str(settings["url"])} if settings.get("url") else {}
        if settings.get("command"):
            words = [str(settings["command"]), *map(str, settings.get("args", ()))]
            details["Command, which runs on this machine with your rights"] = shlex.join(words)
        others = {key: value for key, value in settings.items() if key not in ("url", "command", "args")}
        if others:
            details["Other settings"] = json.dumps(others, ensure_ascii=False)
        shown = {key: show_exact_line(each, MAX_CONFIRMED_CHARS) for key, each in details.items()}
        return ProposedChange(title, shown, button, apply, SERVERS_PAGE)

    def _require_free_name(self, name: str) -> None:
        if name in self._runtime.config.mcp.servers:
            raise RequestRefused(409, f"A server named {name!r} already exists.")

    def change(self, name: str, change: str) -> Json | ProposedChange:
        """Disable or remove a server, or propose to enable it. Raises RequestRefused."""
        self._require_server(name)
        if not self._is_own(name):
            origin = self._runtime.config.origins.get(f"mcp.servers.{name}", "another source of settings")
            raise RequestRefused(409, f"This server is defined in {origin}; change it there.")
        if change == "remove":
            self._login_problems.pop(name, None)
            paths = self._runtime.config.paths
            unset_value(paths.user_file, f"mcp.servers.{name}", record=SettingsRecord(paths.state_dir))
            self._runtime.check_settings()
        elif change == "disable":
            self._write(f"mcp.servers.{name}.enabled", False)
        elif change == "enable":
            return self._propose_enabling(name)
        else:
            raise RequestRefused(400, "change must be enable, disable or remove.")
        return self.list_servers()

    def _propose_enabling(self, name: str) -> ProposedChange:
        confirmed = self._dump_settings(name)

        def write() -> str:
            self._runtime.check_settings()  # the file may have been changed since
            self._require_server(name)
            if self._dump_settings(name) != confirmed:
                raise RequestRefused(409, f"The settings of the server {name} have changed. Enable it again.")
            self._write(f"mcp.servers.{name}.enabled", True)
            return ""

        shown = {key: value for key, value in redact_settings(confirmed).items() if key != "enabled"}
        shown = remove_known_secrets(shown, self._redact)
        return self._propose(f"Enable the server {name}?", shown, "Enable the server", write)

    def _dump_settings(self, name: str) -> dict[str, Any]:
        return self._runtime.config.mcp.servers[name].model_dump(mode="json", exclude_defaults=True)

    async def test(self, name: str) -> Json:
        """Start a server, list its tools and return how many there are, or why it fails.

        Ends after `MAX_TEST_SECONDS`, or when `cancel_test` is called.
        """
        self._require_server(name)
        if name not in self._runtime.mcp.servers:
            raise RequestRefused(409, "The server is disabled. Enable it first.")
        if name in self._tests:
            raise RequestRefused(409, "The server is already being tested.")
        if len(self._tests) >= MAX_TESTS:
            raise RequestRefused(503, f"{MAX_TESTS} servers are being tested. Wait until one has finished.")
        task = asyncio.create_task(self._runtime.mcp.fetch_listing(name, self._find_time_limit(name)))
        self._tests[name] = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # without effect if it has ended
            del self._tests[name]
        return self._describe_test(task)

    def _find_time_limit(self, name: str) -> float:
        return min(MAX_TEST_SECONDS, 2 * self._runtime.config.mcp.servers[name].connect_timeout_seconds)

    def _describe_test(self, done: asyncio.Task[Listing]) -> Json:
        if done.cancelled():
            return {"ok": False, "problem": "The test was cancelled.", "tools": []}
        try:
            listing = done.result()
        except (ServerFailed, ConfigError) as error:
            return {"ok": False, "problem": show_text(self._redact(str(error)), 2_000), "tools": []}
        return {
            "ok": True,
            "problem": "",
            "tools": [show_name(each.name) for each in listing.tools[:500]],
            "problems": [show_line(each) for each in listing.problems[:20]],
        }

    async def cancel_test(self, name: str) -> Json:
        """Stop the running test of a server, if there is one."""
        if name in self._tests:
            self._tests[name].cancel()
        return {}

    def read_log(self, name: str) -> Json:
        """Return the end of a server's log, without secrets."""
        self._require_server(name)
        file = self._runtime.config.paths.state_dir / "mcp" / "logs" / f"{name}.log"
        try:
            with file.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(max(0, size - MAX_LOG_BYTES))
                text = stream.read(MAX_LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            text = ""
        lines = text.splitlines()[-MAX_LOG_LINES:]
        return {"lines": [show_line(self._redact(each), 1_000) for each in lines]}

    async def log_in(self, name: str) -> Json:
        """Start the login to a server; return the URL at which the user continues. Raises RequestRefused."""
        from toolfold.mcp.oauth import log_in

        self._require_server(name)
        config = self._runtime.config
        loop = asyncio.get_running_loop()
        address: asyncio.Future[str] = loop.create_future()

        def use_url(url: str) -> None:
            if not address.done():
                address.set_result(url)

        def visit(url: str) -> None:
            loop.call_soon_threadsafe(use_url, url)

        work = log_in(
            name,
            config.mcp.servers[name],
            await asyncio.to_thread(self._runtime.mcp.open_logins),
            environment=config.environment,
            open_url=visit,
            timeout_s=LOGIN_TIMEOUT_S,
        )
        self._login_problems.pop(name, None)
        task = asyncio.create_task(self._finish_login(name, work))
        self._logins.add(task)
        task.add_done_callback(self._logins.discard)
        waiting: set[asyncio.Future[Any]] = {task, address}
        await asyncio.wait(waiting, timeout=LOGIN_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and (error := task.result()):
            raise RequestRefused(409, self._redact(str(error)))
        if not address.done():
            task.cancel()
            raise RequestRefused(504, "The server did not say where to log in.")
        if not address.result().startswith(("https://", "http://")):
            task.cancel()
            raise RequestRefused(409, "The login address of the server is not an http or https URL.")
        return {"url": address.result()}

    async def _finish_login(self, name: str, work: Any) -> Exception | None:
        """Wait for a login and test the server; if it fails, keep the reason and return the error."""
        try:
            await work
            with suppress(RequestRefused):  # the user may be testing it already
                await self.test(name)
        except Exception as error:
            problem = self._redact(error_message(error) or type(error).__name__)
            log.warning("the login to the server %s has failed: %s", name, problem)
            self._login_problems[name] = show_line(f"The login has failed: {problem}")
            return error
        return None

    async def close(self) -> None:
        """Cancel logins and tests that were not finished."""
        unfinished: list[asyncio.Task[Any]] = [*self._logins, *self._tests.values()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def _write(self, key: str, value: object) -> None:
        paths = self._runtime.config.paths
        try:
            set_value(paths.user_file, key, value, record=SettingsRecord(paths.state_dir))
        except ConfigError as error:
            raise RequestRefused(409, self._redact(f"The settings could not be changed: {error}")) from None
        self._runtime.check_settings()

    def _require_server(self, name: str) -> None:
        if name not in self._runtime.config.mcp.servers:
            raise RequestRefused(404, "There is no server of this name.")


def _parse_target(target: str, env: str) -> dict[str, Any]:
    """Return server settings from a URL or a command and from `NAME=VALUE` lines. Raises RequestRefused."""
    try:
        settings = _parse_url_or_command(target)
        pairs = [line.partition("=") for line in env.splitlines() if line.strip()]
        if any(not sign or not name.strip() for name, sign, _ in pairs):
            raise RequestRefused(400, "Write one environment variable per line: NAME=VALUE.")
        if pairs:
            settings["env"] = {name.strip(): value for name, _, value in pairs}
        parse_server_settings(settings)
    except ValidationError as error:
        raise RequestRefused(400, error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    except ValueError as error:
        raise RequestRefused(400, f"The command cannot be read: {error}.") from None
    return settings


def _parse_url_or_command(target: str) -> dict[str, Any]:
    if target.startswith(("http://", "https://")):
        return {"url": target}  # quotes and backslashes have no meaning in a URL
    words = shlex.split(target)
    return {"command": words[0], "args": words[1:]}
