"""References in a server's settings, and what a server's process knows of our environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.config.servers import McpServer, usable
from toolfold.errors import ConfigError
from toolfold.sources.mcp.references import child_environment, resolve, resolved, secret_values

SECRET = "hunter2-and-more"


def stdio(**settings: Any) -> McpServer:
    return usable({"command": "server", **settings})


def held(service: str, name: str) -> str | None:
    return {("work/mail", "me@example.com"): SECRET}.get((service, name))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("plain", "plain"),
        ("${A}", "one"),
        ("x${A}y${A}z", "xoneyonez"),
        ("${EMPTY}", ""),
        ("${A:-two}", "one"),
        ("${EMPTY:-two}", "two"),
        ("${MISSING:-two words: three}", "two words: three"),
        ("${MISSING:-}", ""),
        ("$A and $ and {A}", "$A and $ and {A}"),
        ("$${A} is ${A}", "${A} is one"),
        ("${POINTS}", "${A}"),
    ],
)
def test_a_reference_stands_for_a_variable(text: str, meant: str) -> None:
    assert resolve(text, {"A": "one", "EMPTY": "", "POINTS": "${A}"}) == meant


def test_a_variable_that_is_not_set_is_named_and_nothing_else_is() -> None:
    with pytest.raises(ConfigError, match="the variable MISSING is not set") as raised:
        resolve("${PRESENT} ${MISSING}", {"PRESENT": SECRET})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["${input:token}", "${}", "${A B}", "${A:+x}", "${A", "${A:-${B}}", "${keyring:x}", "${keyring:/}"],
)
def test_what_only_looks_like_a_reference_is_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\{keyring:service/name\}"):
        resolve(text, {"A": "one", "B": "two"}, keyring=held)


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_is_resolved_or_refused(text: str, environment: dict[str, str]) -> None:
    try:
        resolved = resolve(text, environment, keyring=held)
    except ConfigError:
        return
    assert "${" in text or resolved == text


def test_the_last_part_of_a_keyring_reference_is_the_name() -> None:
    assert resolve("Bearer ${keyring:work/mail/me@example.com}", {}, keyring=held) == f"Bearer {SECRET}"


def test_a_keyring_that_has_no_such_password_is_told_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match="keyring set work/mail you"):
        resolve("${keyring:work/mail/you}", {}, keyring=held)


def test_the_keyring_package_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", keyring_package(lambda service, name: f"{service}+{name}"))
    assert resolve("${keyring:github/me}", {}) == "github+me"


def test_a_keyring_that_cannot_be_read_says_so_without_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(service: str, name: str) -> str:
        raise RuntimeError(f"cannot decrypt {SECRET}")

    monkeypatch.setitem(sys.modules, "keyring", keyring_package(locked))
    with pytest.raises(ConfigError, match="cannot be read: RuntimeError") as raised:
        resolve("${keyring:github/me}", {})
    assert SECRET not in str(raised.value)


def test_a_missing_keyring_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="pip install keyring"):
        resolve("${keyring:github/me}", {})


def test_a_process_knows_harmless_variables_and_no_secret() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "SSL_CERT_FILE": "/c",
        "OPENAI_API_KEY": SECRET,
        "X": "1",
    }
    given = child_environment(stdio(), ours)
    assert given == {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "SSL_CERT_FILE": "/c"}


def test_a_process_knows_what_is_passed_by_name_and_what_is_set() -> None:
    server = stdio(env={"TOKEN": "${OURS}", "HOME": "/elsewhere"}, pass_env=["REGION", "NOT_THERE"])
    given = child_environment(server, {"HOME": "/h", "OURS": SECRET, "REGION": "north"})
    assert given == {"HOME": "/elsewhere", "REGION": "north", "TOKEN": SECRET}


def test_a_proxy_is_passed_on_unless_its_password_stands_in_it() -> None:
    ours = {
        "HTTPS_PROXY": "http://proxy:3128",
        "http_proxy": "http://me:pw@proxy:3128",
        "NO_PROXY": "localhost",
    }
    assert child_environment(stdio(), ours) == {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost"}
    assert "http_proxy" in child_environment(stdio(pass_env=["http_proxy"]), ours)


@pytest.mark.parametrize("proxy", ["me:pw@proxy:3128", "http://[broken"])
def test_a_proxy_that_may_hold_a_password_is_kept_back(proxy: str) -> None:
    assert child_environment(stdio(), {"ALL_PROXY": proxy}) == {}


def test_a_function_of_a_shell_is_no_harmless_variable() -> None:
    assert child_environment(stdio(), {"TERM": "() { :; }; echo run"}) == {}


@pytest.mark.parametrize("name", ["A=B", ""])
def test_a_variable_no_process_can_have_is_refused_before_one_is_started(name: str) -> None:
    with pytest.raises(ConfigError, match="no process can be given"):
        child_environment(stdio(env={name: "x"}), {})


@given(st.dictionaries(st.text(), st.text()))
def test_a_variable_that_nobody_named_is_never_passed_on_by_its_value(ours: dict[str, str]) -> None:
    given = child_environment(stdio(), {**{f"MY_{name}": value for name, value in ours.items()}})
    assert given == {}


def test_a_real_process_is_given_this_environment_and_no_other() -> None:
    given = child_environment(stdio(env={"ONLY": "this"}), {"AWS_SECRET_ACCESS_KEY": SECRET})
    told = subprocess.run(["/usr/bin/env"], env=given, capture_output=True, text=True, check=True)
    assert told.stdout == "ONLY=this\n"


def test_what_was_looked_up_is_secret() -> None:
    server = usable(
        {
            "url": "https://example.com/${PATH_KEY}",
            "headers": {"X-Region": "${REGION}", "Authorization": "Bearer ${TOKEN}"},
            "oauth": {"client_secret": "${keyring:work/mail/me@example.com}"},
        }
    )
    ours = {"PATH_KEY": "k" * 9, "REGION": "north-by-west", "TOKEN": "t" * 12}
    assert set(secrets(server, ours)) == {SECRET, "k" * 9, "north-by-west", "t" * 12}


def test_what_is_written_out_under_a_telling_name_is_secret() -> None:
    server = usable(
        {
            "url": "https://example.com",
            "headers": {"Authorization": "Bearer abcdefghij", "Accept": "text/html"},
        }
    )
    assert secrets(server, {}) == ("Bearer abcdefghij", "abcdefghij")
    assert secrets(stdio(env={"GITHUB_TOKEN": SECRET, "MODE": "production"}), {}) == (SECRET,)
    assert secrets(usable({"url": "https://e.com", "oauth": {"client_secret": SECRET}}), {}) == (SECRET,)


def test_what_is_passed_under_a_telling_name_is_secret() -> None:
    ours = {"API_KEY": SECRET, "REGION": "north-by-west"}
    assert secrets(stdio(pass_env=["API_KEY", "REGION", "MISSING"]), ours) == (SECRET,)


def test_a_folder_everybody_may_know_is_not_torn_out_of_messages() -> None:
    assert secrets(stdio(args=["${HOME}/notes", "${SHORT}"]), {"HOME": "/home/somebody", "SHORT": "on"}) == ()


def test_secrets_that_cannot_be_looked_up_are_left_out() -> None:
    server = stdio(env={"A": "${MISSING}", "B": "${keyring:no/one}", "C": "${PRESENT}"})
    assert secrets(server, {"PRESENT": SECRET}) == (SECRET,)


def secrets(server: McpServer, environment: Mapping[str, str]) -> tuple[str, ...]:
    return secret_values(server, environment, keyring=held)


def keyring_package(get_password: Any) -> ModuleType:
    package = ModuleType("keyring")
    package.__dict__["get_password"] = get_password
    return package


def test_what_starts_and_reaches_a_server_is_looked_up() -> None:
    environment = {"BIN": "/opt/bin", "TOKEN": "s3cret-value", "HOST": "example.com"}
    started = resolved(
        usable({"command": "${BIN}/serve", "args": ["--key", "${TOKEN}", "$${X}"]}), environment
    )
    assert (started.command, started.args) == ("/opt/bin/serve", ("--key", "s3cret-value", "${X}"))
    reached = resolved(usable({"url": "https://${HOST}/mcp", "headers": {"X-Key": "${TOKEN}"}}), environment)
    assert (reached.url, dict(reached.headers)) == ("https://example.com/mcp", {"X-Key": "s3cret-value"})
