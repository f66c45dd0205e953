"""References in a server's settings, and the environment of a server's process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.config.servers_settings import McpServerSettings, parse_server_settings
from toolfold.core.errors import ConfigError
from toolfold.mcp.setting_references import (
    build_environment,
    collect_secrets,
    resolve_references,
    resolve_settings,
)

SECRET = "hunter2-and-more"


def stdio_settings(**settings: Any) -> McpServerSettings:
    return parse_server_settings({"command": "server", **settings})


def fake_keyring(service: str, name: str) -> str | None:
    return {("work/mail", "me@example.com"): SECRET}.get((service, name))


@check_cases(
    ("text", "expected"),
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
def test_variable_reference_in_a_setting_is_replaced_by_the_value_of_the_variable(
    text: str, expected: str
) -> None:
    assert resolve_references(text, {"A": "one", "EMPTY": "", "POINTS": "${A}"}) == expected


def test_error_for_a_reference_to_an_unset_variable_contains_its_name_and_no_values() -> None:
    with pytest.raises(ConfigError, match="the environment variable MISSING is not set") as raised:
        resolve_references("${PRESENT} ${MISSING}", {"PRESENT": SECRET})
    assert SECRET not in str(raised.value)


@check_cases(
    "text",
    ["${input:token}", "${}", "${A B}", "${A:+x}", "${A", "${A:-${B}}", "${keyring:x}", "${keyring:/}"],
)
def test_error_for_a_malformed_variable_reference_shows_the_valid_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\{keyring:service/name\}"):
        resolve_references(text, {"A": "one", "B": "two"}, keyring=fake_keyring)


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_arbitrary_text_with_variable_references_is_resolved_or_raises_config_error(
    text: str, environment: dict[str, str]
) -> None:
    try:
        resolved = resolve_references(text, environment, keyring=fake_keyring)
    except ConfigError:
        return
    assert "${" in text or resolved == text


def test_keyring_reference_is_split_at_its_last_slash_into_service_and_user_name() -> None:
    assert (
        resolve_references("Bearer ${keyring:work/mail/me@example.com}", {}, keyring=fake_keyring)
        == f"Bearer {SECRET}"
    )


def test_error_for_a_missing_keyring_password_contains_the_command_to_add_the_password() -> None:
    with pytest.raises(ConfigError, match="keyring set work/mail you"):
        resolve_references("${keyring:work/mail/you}", {}, keyring=fake_keyring)


def test_keyring_reference_is_resolved_by_the_installed_python_package_keyring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", keyring_package(lambda service, name: f"{service}+{name}"))
    assert resolve_references("${keyring:github/me}", {}) == "github+me"


def test_error_for_an_unreadable_keyring_does_not_contain_the_message_of_the_keyring_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(service: str, name: str) -> str:
        raise RuntimeError(f"cannot decrypt {SECRET}")

    monkeypatch.setitem(sys.modules, "keyring", keyring_package(locked))
    with pytest.raises(ConfigError, match="cannot be read: RuntimeError") as raised:
        resolve_references("${keyring:github/me}", {})
    assert SECRET not in str(raised.value)


def test_error_for_a_keyring_reference_explains_how_to_install_the_missing_package_keyring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="pip install keyring"):
        resolve_references("${keyring:github/me}", {})


def test_server_environment_contains_path_and_home_but_no_api_keys_or_unknown_variables() -> None:
    environment = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "SSL_CERT_FILE": "/c",
        "OPENAI_API_KEY": SECRET,
        "X": "1",
    }
    given = build_environment(stdio_settings(), environment)
    assert given == {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "SSL_CERT_FILE": "/c"}


def test_server_environment_contains_variables_listed_in_pass_env_and_set_in_env() -> None:
    server = stdio_settings(env={"TOKEN": "${OURS}", "HOME": "/elsewhere"}, pass_env=["REGION", "NOT_THERE"])
    given = build_environment(server, {"HOME": "/h", "OURS": SECRET, "REGION": "north"})
    assert given == {"HOME": "/elsewhere", "REGION": "north", "TOKEN": SECRET}


def test_http_proxy_variable_without_a_password_is_passed_to_servers() -> None:
    environment = {
        "HTTPS_PROXY": "http://proxy:3128",
        "http_proxy": "http://me:pw@proxy:3128",
        "NO_PROXY": "localhost",
    }
    assert build_environment(stdio_settings(), environment) == {
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": "localhost",
    }
    assert "http_proxy" in build_environment(stdio_settings(pass_env=["http_proxy"]), environment)


@check_cases("proxy", ["me:pw@proxy:3128", "http://[broken"])
def test_http_proxy_variable_with_a_password_is_not_passed_to_servers(proxy: str) -> None:
    assert build_environment(stdio_settings(), {"ALL_PROXY": proxy}) == {}


def test_exported_shell_function_is_not_passed_to_servers() -> None:
    assert build_environment(stdio_settings(), {"TERM": "() { :; }; echo run"}) == {}


@check_cases("name", ["A=B", ""])
def test_invalid_environment_variable_name_in_server_settings_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="has an invalid name or value"):
        build_environment(stdio_settings(env={name: "x"}), {})


@given(st.dictionaries(st.text(), st.text()))
def test_environment_variable_not_listed_in_the_settings_is_never_passed_to_servers(
    environment: dict[str, str],
) -> None:
    given = build_environment(
        stdio_settings(), {**{f"MY_{name}": value for name, value in environment.items()}}
    )
    assert given == {}


def test_server_process_receives_only_its_configured_environment_variables() -> None:
    given = build_environment(stdio_settings(env={"ONLY": "this"}), {"AWS_SECRET_ACCESS_KEY": SECRET})
    told = subprocess.run(["/usr/bin/env"], env=given, capture_output=True, text=True, check=True)
    assert told.stdout == "ONLY=this\n"


def test_values_of_resolved_variable_references_in_server_settings_are_treated_as_secrets() -> None:
    server = parse_server_settings(
        {
            "url": "https://example.com/${PATH_KEY}",
            "headers": {"X-Region": "${REGION}", "Authorization": "Bearer ${TOKEN}"},
            "oauth": {"client_secret": "${keyring:work/mail/me@example.com}"},
        }
    )
    environment = {"PATH_KEY": "k" * 9, "REGION": "north-by-west", "TOKEN": "t" * 12}
    assert set(secrets_of(server, environment)) == {SECRET, "k" * 9, "north-by-west", "t" * 12}


def test_literal_setting_whose_name_suggests_a_secret_is_treated_as_a_secret() -> None:
    server = parse_server_settings(
        {
            "url": "https://example.com",
            "headers": {"Authorization": "Bearer abcdefghij", "Accept": "text/html"},
        }
    )
    assert secrets_of(server, {}) == ("Bearer abcdefghij", "abcdefghij")
    assert secrets_of(stdio_settings(env={"GITHUB_TOKEN": SECRET, "MODE": "production"}), {}) == (SECRET,)
    assert secrets_of(
        parse_server_settings({"url": "https://e.com", "oauth": {"client_secret": SECRET}}), {}
    ) == (SECRET,)


def test_passed_environment_variable_named_api_key_is_treated_as_a_secret() -> None:
    environment = {"API_KEY": SECRET, "REGION": "north-by-west"}
    assert secrets_of(stdio_settings(pass_env=["API_KEY", "REGION", "MISSING"]), environment) == (SECRET,)


def test_home_directory_from_a_variable_reference_is_not_treated_as_a_secret() -> None:
    assert (
        secrets_of(
            stdio_settings(args=["${HOME}/notes", "${SHORT}"]), {"HOME": "/home/somebody", "SHORT": "on"}
        )
        == ()
    )


def test_list_of_secrets_omits_unresolvable_variable_references() -> None:
    server = stdio_settings(env={"A": "${MISSING}", "B": "${keyring:no/one}", "C": "${PRESENT}"})
    assert secrets_of(server, {"PRESENT": SECRET}) == (SECRET,)


def secrets_of(server: McpServerSettings, environment: Mapping[str, str]) -> tuple[str, ...]:
    return collect_secrets(server, environment, keyring=fake_keyring)


def keyring_package(get_password: Any) -> ModuleType:
    package = ModuleType("keyring")
    package.__dict__["get_password"] = get_password
    return package


def test_variable_references_in_the_command_and_url_and_headers_of_a_server_are_resolved() -> None:
    environment = {"BIN": "/opt/bin", "TOKEN": "s3cret-value", "HOST": "example.com"}
    started = resolve_settings(
        parse_server_settings({"command": "${BIN}/serve", "args": ["--key", "${TOKEN}", "$${X}"]}),
        environment,
    )
    assert (started.command, started.args) == ("/opt/bin/serve", ("--key", "s3cret-value", "${X}"))
    reached = resolve_settings(
        parse_server_settings({"url": "https://${HOST}/mcp", "headers": {"X-Key": "${TOKEN}"}}), environment
    )
    assert (reached.url, dict(reached.headers)) == ("https://example.com/mcp", {"X-Key": "s3cret-value"})


def test_references_to_user_credentials_are_resolved_only_from_stored_credentials() -> None:
    from toolfold.cli.connecting.required_variables import list_required_variables
    from toolfold.mcp.setting_references import add_credentials

    server = parse_server_settings(
        {"url": "https://x.example/mcp", "headers": {"X": "${user:TOKEN} ${PLAIN} ${user:NONE:-default}"}}
    )
    assert list_required_variables([server]) == ("PLAIN",)
    variables = add_credentials({"PLAIN": "p", "user:TOKEN": "planted"}, {"TOKEN": "t"})
    assert resolve_settings(server, variables).headers == {"X": "t p default"}
    with pytest.raises(ConfigError, match="there is no credential TOKEN"):
        resolve_settings(server, add_credentials({"PLAIN": "p", "user:TOKEN": "planted"}, {}))
