"""Access to the dashboard over HTTP: sign-in, cookies, headers, and requests of other pages and programs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.dashboard.harness import TIMEOUT_S, DashboardProcess
from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process
from toolfold.config import load_config
from toolfold.config.allowed_tool_entries import AllowedTool
from toolfold.config.record import SettingsRecord
from toolfold.safety.approval.allowed_tools import build_allowed_tools
from toolfold.serving.dashboard.dashboard_access import CODE_LIFETIME_S, SESSION_LIFETIME_S, SignIn
from toolfold.serving.gateway.client_tokens import Tokens, open_tokens
from toolfold.serving.gateway.request_bodies import RequestRefused


class Visitor:
    """An HTTP client that behaves like the page."""

    def __init__(self, dashboard: DashboardProcess) -> None:
        self.origin = f"http://127.0.0.1:{dashboard.port}"
        self.http = httpx2.Client(base_url=self.origin, timeout=60)

    def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        return self.http.post(f"/ui/api/{path}", json=body, headers={"origin": self.origin, **headers})

    def sign_in(self, dashboard: DashboardProcess) -> str:
        """Sign in and return the page key."""
        response = self.post("sign-in", {"code": dashboard.run("link").partition("#code=")[2]})
        assert response.status_code == 200, response.text
        self.cookie = response.headers["set-cookie"]
        return str(response.json()["page_key"])


@pytest.fixture
def visitor(dashboard: DashboardProcess) -> Iterator[Visitor]:
    found = Visitor(dashboard)
    yield found
    found.http.close()


def test_dashboard_page_has_a_content_security_policy_without_inline_scripts_or_frames(
    visitor: Visitor,
) -> None:
    response = visitor.http.get("/ui/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def test_dashboard_session_cookie_has_the_attributes_http_only_and_same_site(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    key = visitor.sign_in(dashboard)
    for word in ("HttpOnly", "SameSite=Strict", "Path=/ui/"):
        assert word in visitor.cookie
    assert key not in visitor.cookie
    assert visitor.http.get("/ui/api/tools", headers={"x-toolfold-page-key": key}).json()["total"] > 100


def test_dashboard_request_that_lacks_the_session_cookie_or_the_page_key_is_refused(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    key = visitor.sign_in(dashboard)
    assert visitor.http.get("/ui/api/overview").status_code == 401
    assert visitor.http.get("/ui/api/overview", headers={"x-toolfold-page-key": "x"}).status_code == 401
    visitor.http.cookies.clear()
    assert visitor.http.get("/ui/api/overview", headers={"x-toolfold-page-key": key}).status_code == 401
    assert visitor.http.get("/ui/api/events", headers={"x-toolfold-page-key": key}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 421),
    ],
)
def test_dashboard_request_with_a_foreign_origin_or_host_header_is_refused(
    visitor: Visitor, dashboard: DashboardProcess, headers: dict[str, str], status: int
) -> None:
    key = visitor.sign_in(dashboard)
    body = {"name": "terminal", "change": "disable"}
    sent = {"x-toolfold-page-key": key, **headers}
    assert visitor.post("tools/change", body, **sent).status_code == status


def test_dashboard_request_that_changes_settings_is_refused_without_an_origin_header(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    key = visitor.sign_in(dashboard)
    response = visitor.http.post(
        "/ui/api/tools/change",
        json={"name": "terminal", "change": "disable"},
        headers={"x-toolfold-page-key": key},
    )
    assert response.status_code == 403
    assert "terminal" not in (dashboard.home / "config.yaml").read_text()


def test_dashboard_requests_are_refused_after_signing_out(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    headers = {"x-toolfold-page-key": visitor.sign_in(dashboard)}
    assert visitor.post("sign-out", {}, **headers).status_code == 200
    assert visitor.http.get("/ui/api/overview", headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/access.py", "missing.js"])
def test_dashboard_does_not_serve_source_files_or_parent_directory_paths(visitor: Visitor, path: str) -> None:
    response = visitor.http.get(f"/ui/{path}")
    assert response.status_code in (403, 404)


def test_dashboard_responses_contain_no_secret_from_environment_variables(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    secret = "sk-demo-0123456789abcdef"  # in the environment of the dashboard's process
    dashboard.run("call", tool="notes_add_note", arguments={"text": f"the key is {secret}"})
    dashboard.run(
        "add_tool",
        name="leaky",
        toolset="leaky",
        schema={"description": f"Uses {secret}.", "parameters": {"type": "object"}},
    )
    headers = {"x-toolfold-page-key": visitor.sign_in(dashboard)}
    for path in ("overview", "tools?q=leaky", "tool?name=leaky", "activity", "about", "choices"):
        response = visitor.http.get(f"/ui/api/{path}", headers=headers)
        assert response.status_code == 200, response.text
        assert secret not in response.text


def test_dashboard_request_with_invalid_values_returns_an_error_status_with_a_reason(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    headers = {"x-toolfold-page-key": visitor.sign_in(dashboard)}
    cases: list[tuple[str, Any, int]] = [
        ("explain", {"message": ""}, 400),
        ("explain", {"message": "x", "mode": "magic"}, 400),
        ("explain", {"message": "x", "top_k": 10_000}, 400),
        ("explain", {"message": "x", "toolsets": ["no such toolset"]}, 400),
        ("tools/change", {"name": "nobody", "change": "disable"}, 404),
        ("tools/change", {"name": "terminal", "change": "destroy"}, 400),
        ("tools/accept", {"name": "terminal", "fingerprint": "x"}, 409),
        ("approvals/answer", {"id": "x", "answer": "once"}, 409),
        ("no/such/path", {}, 404),
        ("explain", [], 400),
    ]
    for path, body, status in cases:
        response = visitor.post(path, body, **headers)
        assert (response.status_code, bool(response.json()["error"])) == (status, True), (path, body)


def test_expired_sign_in_codes_and_browser_sessions_are_refused() -> None:
    now = [0.0]
    sign_in = SignIn(lambda _: True, lambda: now[0])
    code = sign_in.create_code()
    now[0] = CODE_LIFETIME_S + 1
    with pytest.raises(RequestRefused, match="already used or has expired"):
        sign_in.redeem(code)
    signed_in = sign_in.redeem(sign_in.create_code())
    assert sign_in.use_session(signed_in.cookie, signed_in.page_key)
    now[0] += SESSION_LIFETIME_S + 1
    assert not sign_in.use_session(signed_in.cookie, signed_in.page_key)


def test_dashboard_is_served_on_the_port_of_the_gateway(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with gateway_process(home) as gateway:
        code = _wait_for_code(gateway)
        origin = f"http://127.0.0.1:{gateway.port}"
        with httpx2.Client(base_url=origin, timeout=60) as http:
            assert "<title>Toolfold</title>" in http.get("/ui/").text
            answer = http.post("/ui/api/sign-in", json={"code": code}, headers={"origin": origin})
            key = answer.json()["page_key"]
            overview = http.get("/ui/api/overview", headers={"x-toolfold-page-key": key}).json()
            assert overview["catalog"]["tools"] > 0
    assert "Traceback" not in gateway.log.read_text()


def test_browser_on_another_machine_needs_a_token_to_sign_in(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    run = [sys.executable, "-m", "toolfold", "token", "add"]
    made = subprocess.run([*run, "admin"], env=environment(home), cwd=home, capture_output=True, text=True)
    scoped = subprocess.run(
        [*run, "scoped", "--toolset", "web"], env=environment(home), cwd=home, capture_output=True, text=True
    )
    with gateway_process(home, "--host", "0.0.0.0") as gateway:
        code = _wait_for_code(gateway)
        origin = f"http://127.0.0.1:{gateway.port}"
        with httpx2.Client(base_url=origin, headers={"origin": origin}, timeout=60) as http:
            assert http.get("/ui/api/hello").json()["needs_token"]
            for token, status in (("", 403), ("tf_wrong", 403), (_find_token(scoped.stdout), 403)):
                answer = http.post("/ui/api/sign-in", json={"code": code, "token": token})
                assert answer.status_code == status, answer.text
            answer = http.post("/ui/api/sign-in", json={"code": code, "token": _find_token(made.stdout)})
            assert answer.status_code == 200, answer.text


def test_only_an_unrestricted_token_of_an_administrator_can_sign_in_to_the_dashboard(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    state = dashboard.home / "state"
    tokens = Tokens(state / "gateway" / "tokens.json", SettingsRecord(state))
    admin, user = tokens.users.add_user("root", is_admin=True), tokens.users.add_user("ann")
    keys = [tokens.add(each.name, user_id=each.id) for each in (admin, user)]
    limited = tokens.add("limited", user_id=admin.id, denied=["server:notes"])
    code = dashboard.run("link").partition("#code=")[2]
    for token in (keys[1], limited):
        assert visitor.post("sign-in", {"code": code, "token": token}).status_code == 403
        own = {"authorization": f"Bearer {token}"}
        for path in (  # a token alone opens nothing
            *("overview", "activity", "approvals", "clients", "events", "servers", "chat", "evaluation"),
            *("clients/tools?name=root", "servers/log?name=notes", "tool?name=terminal"),
        ):
            assert visitor.http.get(f"/ui/api/{path}", headers=own).status_code == 401
        for path in ("approvals/answer", "clients/add", "clients/revoke", "chat/send", "servers/add"):
            assert visitor.post(path, {}, **own).status_code == 401
    answer = visitor.post("sign-in", {"code": code, "token": keys[0]})
    assert answer.status_code == 200, answer.text
    page_key = {"x-toolfold-page-key": answer.json()["page_key"]}
    assert visitor.http.get("/ui/api/overview", headers=page_key).status_code == 200
    tokens.users.change_user("root", lambda each: replace(each, is_admin=False))
    assert visitor.http.get("/ui/api/overview", headers=page_key).status_code == 401


def test_revoking_a_token_in_the_dashboard_deletes_the_tool_permissions_of_its_client(
    visitor: Visitor, dashboard: DashboardProcess
) -> None:
    config = load_config(env={"TOOLFOLD_HOME": str(dashboard.home)})
    key = visitor.sign_in(dashboard)
    open_tokens(config, None).add("desk")
    entries = [AllowedTool("tool", "wipe", client=each) for each in ("desk", "other")]
    build_allowed_tools(config).add(*entries)  # after the dashboard has read its settings
    answer = visitor.post("clients/revoke", {"name": "desk"}, **{"x-toolfold-page-key": key})
    assert answer.status_code == 200, answer.text
    assert "desk" not in {each["name"] for each in answer.json()["clients"]}
    after = load_config(env={"TOOLFOLD_HOME": str(dashboard.home)})
    assert after.approval.allowed_tools == (str(entries[1]),)


def _wait_for_code(gateway: GatewayProcess) -> str:
    """Return the code of the link that a gateway prints when it is ready."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := re.search(r"#code=(\S+)\n", gateway.log.read_text())):
        assert time.monotonic() < deadline, gateway.log.read_text()
        time.sleep(0.05)
    return found[1]


def _find_token(text: str) -> str:
    return next(word for word in text.split() if word.startswith("tf_"))
