"""A model provider that attacks the dashboard through the browser of its user, in a real Chromium.

The provider answers with a page that reads the keys of the dashboard, adds a server with a command of its own
and creates a token. The protections are tried one by one: first all of them, then without those before.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.gateway.test_attacks import HELLO
from tests.proxy.upstream import Prepared, Received, Upstream, serve_upstream

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

pytestmark = pytest.mark.clients

ATTACK = """
const key = localStorage.getItem("toolfold-page-key") ?? sessionStorage.getItem("toolfold-page-key") ?? "";
const send = (path, body) => fetch(`/ui/api/${path}`, {
  method: "POST",
  headers: {"x-toolfold-page-key": key, "content-type": "application/json"},
  body: JSON.stringify(body),
}).then(async (found) => ({status: found.status, ...await found.json()}));
"""
HTML = f"""<!doctype html><script type="module">{ATTACK}
window.hacked = 1;
document.title = "hacked";
await send("servers/add", {{name: "evil", target: "touch MARKER"}});
await send("clients/add", {{name: "evil"}});
</script>"""
SCRIPT = "self.hacked = 1;"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
CONTENT = {
    "page": ("text/html", HTML),
    "svg": ("image/svg+xml", f'<svg xmlns="http://www.w3.org/2000/svg"><script>{SCRIPT}</script></svg>'),
    "xhtml": (
        "application/xhtml+xml",
        f'<html xmlns="http://www.w3.org/1999/xhtml"><script>{SCRIPT}</script></html>',
    ),
    "json": ("application/json", HTML),
    "text": ("text/plain", HTML),
    "stream": ("text/event-stream", HTML),
    "untyped": ("", HTML),
    "script": ("text/javascript", SCRIPT),
    "style": ("text/css", "body { display: none }"),
}
HEADERS = {
    "set-cookie": "planted=1; Path=/",
    "service-worker-allowed": "/",
    "content-security-policy": "script-src * 'unsafe-inline'",
    "access-control-allow-origin": "*",
    "refresh": "0; url=/ui/",
    "link": "</v1/models/style>; rel=stylesheet",
}


@dataclass
class Setup:
    """A gateway whose provider is hostile, and a browser that has signed in to its dashboard."""

    gateway: GatewayProcess
    upstream: Upstream
    home: Path
    context: BrowserContext
    page: Page

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def find_damage(self) -> list[str]:
        """Return what the attack has changed."""
        settings = json.loads((self.home / "config.yaml").read_text())
        tokens = self.home / "state" / "gateway" / "tokens.json"
        done = ["server"] if "evil" in settings.get("mcp", {}).get("servers", {}) else []
        done += ["token"] if tokens.exists() and "evil" in tokens.read_text() else []
        done += ["command"] if list(self.home.rglob("MARKER")) else []
        done += ["cookie"] if any(each["name"] == "planted" for each in self.context.cookies()) else []
        return done


def answer(request: Received) -> Prepared:
    kind, content = CONTENT[request.path.rpartition("/")[2]]
    sent = {**HEADERS, "content-type": kind} if kind else HEADERS
    return Prepared([content.encode()], headers=sent)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Setup]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    with serve_upstream() as upstream:
        upstream.answer = answer
        write_settings(
            home,
            {
                "providers": {"openai": {"dialect": "openai", "base_url": f"{upstream.url}/v1"}},
                "tools": {"rag_embed_model": "light"},
            },
        )
        with gateway_process(home) as gateway:
            wait_until(lambda: "#code=" in gateway.log.read_text())
            (code, *_) = re.findall(r"#code=([\w-]+)", gateway.log.read_text())
            context = browser.new_context()
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"http://127.0.0.1:{gateway.port}/ui/#code={code}")
            page.get_by_role("heading", name="Overview").wait_for()
            yield Setup(gateway, upstream, home, context, page)
            context.close()


@pytest.fixture
def dashboard_page(setup: Setup) -> Iterator[Page]:
    """The signed-in tab, on the page of the servers."""
    setup.page.goto(f"{setup.origin}/ui/servers")
    setup.page.get_by_role("heading", name="Servers").wait_for()
    yield setup.page
    setup.page.unroute_all()


def open_content(page: Page, url: str) -> None:
    """Open a URL in the tab; a browser downloads what it cannot show."""
    from playwright.sync_api import Error

    try:
        page.goto(url)
    except Error as error:
        if "Download is starting" not in str(error):
            raise


@pytest.mark.parametrize("name", CONTENT)
def test_content_of_a_provider_cannot_be_opened_in_a_browser(
    setup: Setup, dashboard_page: Page, name: str
) -> None:
    setup.upstream.received.clear()
    response = dashboard_page.goto(f"{setup.origin}/v1/models/{name}")
    assert response is not None
    assert response.status == 403
    assert setup.upstream.received == []
    assert dashboard_page.evaluate("window.hacked") is None
    assert setup.find_damage() == []


@pytest.mark.parametrize("name", CONTENT)
def test_content_of_a_provider_runs_no_script_in_a_browser_that_does_not_tell_why_it_opens_a_page(
    setup: Setup, dashboard_page: Page, name: str
) -> None:
    def load(route: Route) -> None:
        sent = {key: value for key, value in route.request.headers.items() if not key.startswith("sec-")}
        route.fulfill(response=route.fetch(headers=sent))

    dashboard_page.route("**/v1/**", load)
    setup.upstream.received.clear()
    open_content(dashboard_page, f"{setup.origin}/v1/models/{name}")
    assert setup.upstream.received
    assert dashboard_page.title() != "hacked"
    assert dashboard_page.evaluate("window.hacked") is None
    assert setup.find_damage() == []


def test_page_of_a_provider_that_keeps_its_type_has_no_access_to_the_origin_of_the_dashboard(
    setup: Setup, dashboard_page: Page
) -> None:
    """The policy `sandbox` alone, as if the type of the content were not replaced."""

    def load(route: Route) -> None:
        found = httpx2.get(route.request.url, timeout=TIMEOUT_S)
        route.fulfill(
            status=200, headers={**dict(found.headers), "content-type": "text/html"}, body=found.text
        )

    dashboard_page.route("**/v1/**", load)
    dashboard_page.goto(f"{setup.origin}/v1/models/page")
    assert dashboard_page.title() != "hacked"
    assert dashboard_page.evaluate("[self.origin, window.hacked]") == ["null", None]
    assert setup.find_damage() == []


def test_dashboard_page_cannot_load_content_of_a_provider_as_script_style_worker_or_frame(
    setup: Setup, dashboard_page: Page
) -> None:
    found = dashboard_page.evaluate(
        """async () => {
            const policy = trustedTypes.createPolicy("test", {createScriptURL: (url) => url});
            const scriptUrl = policy.createScriptURL("/v1/models/script");
            const load = (tag, change) => new Promise((resolve) => {
                const element = document.createElement(tag);
                element.onload = () => resolve("loaded");
                element.onerror = () => resolve("failed");
                change(element);
                document.head.append(element);
            });
            const work = (make) => new Promise((resolve) => {
                try {
                    const worker = make(scriptUrl);
                    worker.onerror = () => resolve("failed");
                    worker.onmessage = () => resolve("loaded");
                } catch { resolve("failed"); }
            });
            const register = (options) => navigator.serviceWorker
                .register(scriptUrl, options)
                .then(() => "loaded", () => "failed");
            return {
                script: await load("script", (each) => each.src = scriptUrl),
                json: await load("script", (each) => each.src = policy.createScriptURL("/v1/models/json")),
                style: await load("link", (each) => {
                    each.rel = "stylesheet";
                    each.href = "/v1/models/style";
                }),
                module: await import("/v1/models/script").then(() => "loaded", () => "failed"),
                worker: await work((url) => new Worker(url)),
                serviceWorker: await register({}),
                wideServiceWorker: await register({scope: "/"}),
                hacked: self.hacked ?? null,
            };
        }"""
    )
    hacked = found.pop("hacked")
    assert hacked is None
    assert set(found.values()) == {"failed"}, found
    assert dashboard_page.evaluate("navigator.serviceWorker.getRegistrations()") == []


def test_provider_sets_no_cookies_when_a_script_requests_its_content(
    setup: Setup, dashboard_page: Page
) -> None:
    setup.upstream.received.clear()
    status = dashboard_page.evaluate("fetch('/v1/models/page').then((found) => found.status)")
    assert status == 200
    assert len(setup.upstream.received) == 1
    assert setup.find_damage() == []


def test_page_key_is_known_to_the_signed_in_tab_only(setup: Setup, dashboard_page: Page) -> None:
    read = "[localStorage, sessionStorage].map((each) => Object.keys(each))"
    local, of_tab = dashboard_page.evaluate(read)
    assert "toolfold-page-key" not in local
    assert of_tab == ["toolfold-page-key"]
    dashboard_page.reload()
    dashboard_page.get_by_role("heading", name="Servers").wait_for()
    other = setup.context.new_page()
    other.goto(f"{setup.origin}/ui/")
    other.get_by_role("heading", name="Sign in to Toolfold").wait_for()
    assert other.evaluate(read)[1] == []
    assert "toolfold_" not in other.evaluate("document.cookie")
    other.close()


def test_script_that_got_into_the_dashboard_page_cannot_confirm_what_it_proposes(
    setup: Setup, dashboard_page: Page
) -> None:
    """The last line: the script runs in the page itself, with the page key, and may open windows."""
    found: dict[str, Any] = dashboard_page.evaluate(
        f"""async () => {{
            {ATTACK}
            const proposed = await send("servers/add", {{name: "evil", target: "touch MARKER"}});
            const {{confirm, token}} = await send("clients/add", {{name: "evil"}});
            const read = await fetch(proposed.confirm);
            const direct = [read.status, await read.text()];
            const blind = await fetch(proposed.confirm, {{method: "POST", body: "token="}});
            const frame = document.createElement("iframe");
            frame.src = proposed.confirm;
            const framed = await new Promise((resolve) => {{
                frame.onload = () => {{
                    try {{ resolve(frame.contentDocument?.forms.length ?? 0); }} catch {{ resolve(0); }}
                }};
                document.body.append(frame);
            }});
            const opened = window.open(proposed.confirm);
            const started = Date.now();
            let forms = 0;
            while (Date.now() - started < 60000 && !opened.closed) {{
                try {{ forms += opened.document.forms.length; }} catch {{}}
                if (forms) break;
                await new Promise((resolve) => setTimeout(resolve, 20));
            }}
            return {{proposed, confirm, token: token ?? null, direct, blind: blind.status, framed, forms,
                severed: opened.closed}};
        }}"""
    )
    assert found["proposed"]["status"] == 200
    assert found["confirm"].startswith("/ui/confirm/")
    assert found["token"] is None
    assert found["direct"][0] == 403
    assert 'name="token"' not in found["direct"][1]
    assert (found["blind"], found["framed"], found["forms"]) == (403, 0, 0)
    assert found["severed"] is True
    assert setup.find_damage() == []
    (window,) = [each for each in setup.context.pages if each is not dashboard_page]
    window.get_by_role("heading", name="Add the server evil?").wait_for()  # the user sees it, and may refuse
    assert "touch MARKER" in window.locator("pre").all_inner_texts()
    assert window.evaluate("window.opener") is None
    window.close()
    assert setup.find_damage() == []


def test_html_in_the_name_of_a_connected_client_is_shown_as_text_on_the_clients_page(
    setup: Setup, dashboard_page: Page
) -> None:
    hello = {**HELLO["params"], "clientInfo": {"name": f"{HOSTILE}\u202egnp.exe", "version": HOSTILE}}
    messages = [
        {**HELLO, "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    with subprocess.Popen(  # a client over stdio chooses the name that is shown
        [sys.executable, "-m", "toolfold", "mcp", "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=setup.home,
        env=environment(setup.home),
    ) as client:
        assert client.stdin is not None
        client.stdin.write("".join(f"{json.dumps(each)}\n" for each in messages).encode())
        client.stdin.flush()
        try:
            dashboard_page.goto(f"{setup.origin}/ui/clients")
            dashboard_page.get_by_role("cell").get_by_text("<img src=x").first.wait_for()
            assert "\u202e" not in dashboard_page.content()
            assert dashboard_page.evaluate("window.hacked") is None
            assert dashboard_page.locator("#app img[src=x]").count() == 0
        finally:
            client.kill()
