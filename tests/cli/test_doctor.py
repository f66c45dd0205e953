"""`toolfold doctor`, with real server processes and real files."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Toolfold
from tests.cli.test_mcp import TOKEN, SmallServer, make_tool
from tests.gateway.harness import free_port
from toolfold.cli import doctor
from toolfold.config import load_config, set_value, trust_project

LONG_TIMEOUT = ("--seconds", "120")
SILENT = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}


@pytest.fixture
def small(home: Path, tmp_path: Path) -> SmallServer:
    return SmallServer(tmp_path)


@pytest.fixture(autouse=True)
def person(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home directory without other programs, on a machine without a sandbox."""
    directory = tmp_path / "person"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    install_fake_bubblewrap(tmp_path, monkeypatch, works=False)
    return directory


@pytest.fixture(autouse=True)
def no_slow_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limit for slow servers, so that a slow machine fails no test."""
    monkeypatch.setattr(doctor, "SLOW_START_S", 600.0)


def install_fake_bubblewrap(directory: Path, monkeypatch: pytest.MonkeyPatch, *, works: bool) -> None:
    """Put a fake bubblewrap on PATH, because the real one does not work on every machine."""
    program = directory / "bin" / "bwrap"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def change_setting(key: str, value: Any) -> None:
    set_value(load_config().paths.user_file, key, value)


def find_lines(done: Done, about: str, mark: str) -> list[str]:
    """Return the findings with the given subject and mark, each as `what → next`."""
    assert done.code == (0 if done.json["ok"] else 1)
    assert done.json["ok"] == all(each["mark"] != "fail" for each in done.json["findings"])
    lines = (each for each in done.json["findings"] if (each["about"], each["mark"]) == (about, mark))
    return [f"{each['what']} → {each['next']}" for each in lines]


def test_doctor_reports_start_duration_and_tool_count_and_protocol_of_a_working_mcp_server(
    small: SmallServer, toolfold: Toolfold
) -> None:
    toolfold("mcp", "add", "small", "--yes", *small.command)
    done = toolfold("doctor", *LONG_TIMEOUT)
    assert done.code == 0
    assert "small started in" in done.out
    assert "2 tools, protocol 2025-06-18" in done.out
    assert "0 failed" in done.out
    (server,) = toolfold("doctor", "--json", *LONG_TIMEOUT).json["servers"]
    assert (server["name"], server["state"], server["tools"], server["held"]) == ("small", "up", 2, 0)


def test_doctor_reports_how_many_tools_are_listed_to_gateway_clients_and_how_many_are_deferred(
    small: SmallServer, toolfold: Toolfold
) -> None:
    small.set_tools(*(make_tool(f"tool_{number}") for number in range(40)))
    toolfold("mcp", "add", "small", "--yes", *small.command)
    change_setting("mcp.servers.broken", {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]})
    done = toolfold("doctor", "--json", *LONG_TIMEOUT)
    (line,) = [each for each in find_lines(done, "gateway", "ok") if "tools for clients:" in each]
    assert "0 tools are listed, 40 are behind tool_search" in line


def test_doctor_explains_how_to_configure_a_model_if_no_model_is_configured(toolfold: Toolfold) -> None:
    (line,) = find_lines(toolfold("doctor", "--json"), "model", "info")
    assert line.endswith("→ toolfold config set agent.model PROVIDER:MODEL")


def test_doctor_warns_if_the_api_key_of_the_configured_model_is_missing(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    change_setting("agent.model", "anthropic:claude-sonnet-4-6")
    (line,) = find_lines(toolfold("doctor", "--json"), "model", "warn")
    assert "there is no key for the model provider 'anthropic'" in line
    assert line.endswith("→ set the environment variable ANTHROPIC_API_KEY")


def test_doctor_prints_the_configured_model_of_the_agent_if_the_model_can_be_used(
    toolfold: Toolfold, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text('["Hello."]', encoding="utf-8")
    change_setting("agent.model", f"scripted:{script}")
    assert find_lines(toolfold("doctor", "--json"), "model", "ok") == [f"the agent uses scripted:{script} → "]


def test_doctor_prints_every_finding_on_one_line_that_starts_with_a_status_symbol(toolfold: Toolfold) -> None:
    lines = toolfold("doctor").out.split("\n\n")[0].splitlines()
    assert len(lines) == len(toolfold("doctor", "--json").json["findings"])
    assert all(line[0] in "✓·!✗" for line in lines)


def test_doctor_reports_that_no_servers_are_configured_and_how_to_add_one(toolfold: Toolfold) -> None:
    done = toolfold("doctor", "--json")
    assert done.code == 0
    assert "toolfold mcp import" in find_lines(done, "servers", "warn")[0]
    assert "toolfold connect" in find_lines(done, "clients", "ok")[0]


def test_doctor_reports_failing_and_hanging_servers_without_skipping_a_working_server(
    small: SmallServer, toolfold: Toolfold
) -> None:
    change_setting("mcp.servers.small", {"command": small.command[0], "args": small.command[1:]})
    change_setting("mcp.servers.gone", {"command": "/there/is/no/such/program"})
    change_setting("mcp.servers.mute", {**SILENT, "connect_timeout_seconds": 1})
    change_setting("mcp.servers.off", {"command": "x", "enabled": False})
    done = toolfold("doctor", "--json", *LONG_TIMEOUT)
    assert [each.split()[0] for each in find_lines(done, "servers", "fail")] == ["gone", "mute"]
    assert "small started in" in find_lines(done, "servers", "ok")[0]


def test_doctor_reports_a_server_that_does_not_respond_within_the_time_given_by_option_seconds(
    toolfold: Toolfold,
) -> None:
    change_setting("mcp.servers.mute", SILENT)
    done = toolfold("doctor", "--seconds", "0.5", "--json")
    assert "did not respond within 0.5 s" in find_lines(done, "servers", "fail")[0]


def test_doctor_warns_about_a_slowly_starting_server(
    small: SmallServer, toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolfold("mcp", "add", "small", "--yes", *small.command)
    monkeypatch.setattr(doctor, "SLOW_START_S", 0.0)
    assert "(slow)" in find_lines(toolfold("doctor", "--json", *LONG_TIMEOUT), "servers", "warn")[0]


def test_doctor_reports_changed_tools_that_the_user_must_review(
    small: SmallServer, toolfold: Toolfold
) -> None:
    toolfold("mcp", "add", "small", "--yes", *small.command)
    small.set_tools(make_tool("read", "Another thing."), make_tool("write"))
    done = toolfold("doctor", "--json", *LONG_TIMEOUT)
    assert "toolfold mcp review small" in find_lines(done, "review", "warn")[0]
    assert done.json["servers"][0]["held"] == 1


def test_doctor_reports_log_warnings_about_tools_as_findings_instead_of_printing_them_on_stderr(
    small: SmallServer, toolfold: Toolfold, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = SmallServer(tmp_path / "other")
    change_setting("mcp.servers.one", {"command": small.command[0], "args": small.command[1:]})
    change_setting("mcp.servers.two", {"command": other.command[0], "args": other.command[1:]})
    done = toolfold("doctor", "--json", *LONG_TIMEOUT)
    assert "it has the same name as 'read'" in find_lines(done, "log", "warn")[0]
    assert done.err == ""


def test_doctor_does_not_start_disabled_servers(toolfold: Toolfold) -> None:
    change_setting("mcp.servers.off", {"command": "x", "enabled": False})
    assert "disabled" in find_lines(toolfold("doctor", "--json"), "servers", "warn")[0]
    change_setting("mcp.enabled", False)
    assert "mcp.enabled is false" in find_lines(toolfold("doctor", "--json"), "servers", "warn")[0]


def test_doctor_reports_the_name_of_a_setting_with_a_secret_without_printing_the_secret(
    toolfold: Toolfold, person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "only-in-the-environment"
    monkeypatch.setenv("MY_KEY", own)
    script = "import os, sys; sys.exit(os.environ['API_TOKEN'] + os.environ['K'] + sys.argv[1])"
    settings = {
        "command": sys.executable,
        "args": ["-c", script, TOKEN],
        "env": {"API_TOKEN": TOKEN, "K": "${MY_KEY}"},
    }
    change_setting("mcp.servers.leaky", settings)
    change_setting("mcp.servers.odd", {"url": f"http://127.0.0.1:1/{TOKEN}"})
    (person / ".cursor").mkdir()
    (person / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": {"it": settings}}))
    load_config().paths.user_file.chmod(0o644)
    done, text = toolfold("doctor", "--json"), toolfold("doctor")
    for secret in (TOKEN, own):
        assert secret not in done.out + done.err + text.out + text.err
    warned = "\n".join(find_lines(done, "secrets", "warn"))
    assert "mcp.servers.leaky.env.API_TOKEN" in warned
    assert "config.yaml:" in warned
    assert str(person / ".cursor/mcp.json") in warned
    assert "env.K" not in warned
    assert "config.yaml can be read by other users" in find_lines(done, "files", "fail")[0]


def test_doctor_prints_a_chmod_command_for_files_that_other_users_can_read_or_write(
    toolfold: Toolfold, home: Path
) -> None:
    toolfold("token", "add", "laptop")
    assert find_lines(toolfold("doctor", "--json"), "files", "fail") == []
    tokens, lock = home / "state/gateway/tokens.json", home / "toolfold.lock"
    tokens.chmod(0o644)
    lock.write_text("{}")
    lock.chmod(0o666)
    (home / "state/oauth").mkdir(mode=0o700)
    (home / "state/oauth/a.json").write_text("{}")
    failures = find_lines(toolfold("doctor", "--json"), "files", "fail")
    assert [each.split(" → ")[1] for each in failures] == [
        f"chmod go= {tokens}",
        f"chmod go= {home / 'state/oauth/a.json'}",
        f"chmod o-w {lock}",
    ]


def test_doctor_warns_if_approval_or_tool_review_is_disabled_and_prints_commands_to_enable_both(
    toolfold: Toolfold,
) -> None:
    change_setting("mcp.servers.x", {"command": "x", "enabled": True, "trust": "off", "sampling": "allow"})
    change_setting("approval.mode", "off")
    done = toolfold("doctor", "--seconds", "1", "--json")
    trust_lines = "\n".join(find_lines(done, "trust", "warn"))
    assert "toolfold config set mcp.servers.x.trust pin" in trust_lines
    assert "toolfold config set mcp.servers.x.sampling ask" in trust_lines
    assert "approval.mode manual" in find_lines(done, "approval", "warn")[0]


def test_doctor_reports_a_failure_if_other_machines_can_reach_the_gateway_without_a_token(
    toolfold: Toolfold,
) -> None:
    assert find_lines(toolfold("doctor", "--json"), "gateway", "ok")
    change_setting("gateway.host", "0.0.0.0")
    assert "toolfold token add" in find_lines(toolfold("doctor", "--json"), "gateway", "fail")[0]
    toolfold("token", "add", "laptop")
    assert "other machines; 1 token issued" in find_lines(toolfold("doctor", "--json"), "gateway", "warn")[0]


def test_doctor_reports_an_unknown_provider_in_the_model_proxy_settings(toolfold: Toolfold) -> None:
    assert "tools are folded" in find_lines(toolfold("doctor", "--json"), "proxy", "ok")[0]
    change_setting("proxy.upstreams", {"*": {"provider": "opnai"}})
    assert (
        "'opnai' names no known model provider"
        in find_lines(toolfold("doctor", "--json"), "proxy", "fail")[0]
    )


def test_doctor_warns_about_a_base_url_variable_that_points_to_a_stopped_model_proxy(
    toolfold: Toolfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    change_setting("gateway.port", port)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{port}/v1")
    stopped, wrong = find_lines(toolfold("doctor", "--json"), "proxy", "warn")
    assert "OPENAI_BASE_URL is the address of the model proxy, which is not running" in stopped
    assert "ANTHROPIC_BASE_URL has the wrong path" in wrong


def test_doctor_reports_whether_the_gateway_requires_a_token(toolfold: Toolfold) -> None:
    assert "need no token until you create one" in "".join(
        find_lines(toolfold("doctor", "--json"), "gateway", "ok")
    )
    toolfold("token", "add", "laptop")
    assert "every client needs a token (1 token)" in "".join(
        find_lines(toolfold("doctor", "--json"), "gateway", "ok")
    )
    change_setting("gateway.allow_anonymous", True)
    assert "gateway.allow_anonymous" in find_lines(toolfold("doctor", "--json"), "gateway", "warn")[0]
    change_setting("gateway.allow_anonymous", False)
    toolfold("token", "revoke", "laptop")
    assert "none has been created" in find_lines(toolfold("doctor", "--json"), "gateway", "warn")[0]


def test_doctor_recommends_the_sandbox_backend_if_it_is_available_but_not_configured(
    toolfold: Toolfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_lines(toolfold("doctor", "--json"), "terminal", "warn") == []
    install_fake_bubblewrap(tmp_path, monkeypatch, works=True)
    advice = find_lines(toolfold("doctor", "--json"), "terminal", "warn")[0]
    assert "toolfold config set terminal.backend sandbox" in advice
    change_setting("terminal.backend", "sandbox")
    assert find_lines(toolfold("doctor", "--json"), "terminal", "ok") == [
        "commands run in the backend sandbox → "
    ]


def test_doctor_reports_a_missing_setting_of_the_configured_terminal_backend(
    toolfold: Toolfold,
) -> None:
    change_setting("terminal.backend", "ssh")
    assert "terminal.ssh.host" in find_lines(toolfold("doctor", "--json"), "terminal", "fail")[0]


def test_doctor_warns_that_project_settings_changed_since_the_user_trusted_the_project(
    toolfold: Toolfold,
) -> None:
    file = Path("toolfold.yaml")
    file.write_text("tools: {rag_top_k: 5}\n")
    assert "is not trusted" in find_lines(toolfold("doctor", "--json"), "project", "ok")[0]
    trust_project(Path.cwd(), load_config().paths)
    assert find_lines(toolfold("doctor", "--json"), "project", "ok") == []
    file.write_text("tools: {rag_top_k: 6}\n")
    assert "toolfold plugins trust" in find_lines(toolfold("doctor", "--json"), "project", "warn")[0]


def test_doctor_reports_invalid_settings_as_a_finding(toolfold: Toolfold, home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").write_text("tools: {no_such: 1}\n")
    done = toolfold("doctor", "--json")
    assert "no_such" in find_lines(done, "settings", "fail")[0]
    assert "toolfold config edit" in toolfold("doctor").out


def test_doctor_reports_a_setting_out_of_range_as_a_finding_and_prints_nothing_on_stderr(
    toolfold: Toolfold, home: Path
) -> None:
    home.mkdir()
    (home / "config.yaml").write_text("tools: {rag_top_k: 500}\n")
    done = toolfold("doctor", "--json")
    assert "rag_top_k" in find_lines(done, "settings", "warn")[0]
    assert done.err == ""


def test_doctor_fails_if_a_connected_program_cannot_reach_its_gateway(
    toolfold: Toolfold, person: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        toolfold("connect", "windsurf", "--http", f"http://127.0.0.1:{port}/mcp", "--yes")
        assert "Windsurf is connected" in find_lines(toolfold("doctor", "--json"), "clients", "ok")[0]
    assert f"toolfold serve --port {port}" in find_lines(toolfold("doctor", "--json"), "clients", "fail")[0]


def test_doctor_reports_a_connected_program_whose_gateway_entry_is_missing_or_broken(
    toolfold: Toolfold, person: Path
) -> None:
    toolfold("connect", "cursor", "--yes")
    file = person / ".cursor/mcp.json"
    assert "Cursor is connected" in find_lines(toolfold("doctor", "--json"), "clients", "ok")[0]
    document = json.loads(file.read_text())
    document["mcpServers"]["toolfold"]["command"] = "/gone/toolfold"
    file.write_text(json.dumps(document))
    failed = find_lines(toolfold("doctor", "--json"), "clients", "fail")[0]
    assert "/gone/toolfold, which was not found → toolfold connect cursor" in failed
    file.write_text("{}")
    assert (
        "the entry 'toolfold' of Cursor is missing"
        in find_lines(toolfold("doctor", "--json"), "clients", "warn")[0]
    )
    file.write_text("{")
    assert str(file) in find_lines(toolfold("doctor", "--json"), "clients", "fail")[0]
    load_config().paths.state_dir.joinpath("connected.json").write_text("[")
    assert "connected.json" in find_lines(toolfold("doctor", "--json"), "clients", "fail")[0]


def test_doctor_does_not_redact_its_advice_if_a_word_of_the_advice_equals_a_secret(
    toolfold: Toolfold,
) -> None:
    settings = {"command": "/gone/server", "env": {"API_TOKEN": "toolfold", "API_KEY": "Install"}}
    change_setting("mcp.servers.odd", {**settings, "trust": "off"})
    done = toolfold("doctor", "--json")
    assert "[redacted]" not in "".join(each["next"] for each in done.json["findings"])
    assert "→ toolfold config set mcp.servers.odd.trust pin" in "".join(find_lines(done, "trust", "warn"))


def test_doctor_reports_whether_a_program_listens_on_the_gateway_port(toolfold: Toolfold) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        change_setting("gateway.port", port)
        assert (
            f"a program listens on 127.0.0.1, port {port}"
            in find_lines(toolfold("doctor", "--json"), "gateway", "ok")[0]
        )
    done = toolfold("doctor", "--json")
    assert f"nothing listens on 127.0.0.1, port {port}" in find_lines(done, "gateway", "info")[0]
    assert str(port) not in "".join(find_lines(done, "gateway", "ok"))


def test_doctor_reports_a_server_configured_under_two_names(toolfold: Toolfold) -> None:
    server = {"command": "/gone/npx", "args": ["-y", "pkg"]}
    change_setting("mcp.servers.one", server)
    change_setting("mcp.servers.two", {**server, "args": ["pkg"]})
    change_setting("mcp.servers.other_account", {**server, "env": {"ACCOUNT": "b"}})
    change_setting("mcp.servers.web", {"url": "http://127.0.0.1:1/mcp"})
    change_setting("mcp.servers.web2", {"url": "http://127.0.0.1:1/mcp/"})
    change_setting("mcp.servers.off", {**server, "enabled": False})
    first, second = find_lines(toolfold("doctor", "--json"), "twice", "warn")
    assert "one and two are the same server" in first
    assert "→ toolfold mcp remove two" in first
    assert "web and web2" in second


def test_doctor_reports_a_server_that_a_program_uses_both_directly_and_through_the_gateway(
    toolfold: Toolfold, person: Path
) -> None:
    server = {"command": "/gone/run", "args": ["x"]}
    change_setting("mcp.servers.mine", server)
    toolfold("connect", "cursor", "--yes")
    assert find_lines(toolfold("doctor", "--json"), "twice", "warn") == []
    file = person / ".cursor/mcp.json"
    document = json.loads(file.read_text())
    document["mcpServers"] |= {"theirs": server, "another": {"command": "/gone/other"}}
    file.write_text(json.dumps(document))
    (line,) = find_lines(toolfold("doctor", "--json"), "twice", "warn")
    assert "Cursor uses theirs (in Toolfold: mine) twice" in line
    assert "→ toolfold connect cursor --replace" in line
