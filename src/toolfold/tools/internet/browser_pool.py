"""One Chromium browser for all sessions of a runtime, with separate pages and cookies for each session.

The browser is started when the first page is opened and closed when no session has used it for a while. It is
controlled from a separate thread with its own event loop, and reaches the network only through a filtering
proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from toolfold.config.web_settings import BrowserSettings
from toolfold.core.errors import CallError, shorten
from toolfold.core.loops import LoopThread, LoopThreadClosed
from toolfold.tools.internet.address_policy import AddressPolicy
from toolfold.tools.internet.browser_tab import BrowserFailed, BrowserTab, explain_network_error
from toolfold.tools.internet.filtering_proxy import FilteringProxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

__all__ = ["BrowserPool"]

T = TypeVar("T")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
LAUNCH_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 20.0
IDLE_CHECK_S = 5.0
VIEWPORT_WIDTH, VIEWPORT_HEIGHT = 1280, 800
_FLAGS = (
    "--disable-quic",  # would not use the proxy
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # the name of older versions
    "--disable-sync",
    "--no-pings",
)
# Variables that the browser needs; all others may be secrets.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "FONTCONFIG_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass(frozen=True, slots=True)
class _RunningBrowser:
    """Started browser with its driver, proxy and home directory, which are closed together."""

    playwright: Playwright
    browser: Browser
    proxy: FilteringProxy
    home: Path

    async def close(self) -> None:
        for step in (self.browser.close, self.playwright.stop, self.proxy.close):
            with contextlib.suppress(Exception):  # each step must be tried
                await step()
        await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)


class BrowserPool:
    """Pool of the browser pages of all sessions of a runtime, in one shared browser."""

    def __init__(self, settings: BrowserSettings, policy: AddressPolicy) -> None:
        self._settings, self._policy = settings, policy
        self._thread = LoopThread("toolfold-browser")
        self._running: _RunningBrowser | None = None
        self._tabs: dict[str, BrowserTab] = {}
        self._starting = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    def check(self) -> bool:
        """Return True if Playwright and a browser are installed; raise BrowserFailed with advice if not."""
        if find_spec("playwright") is None:
            raise BrowserFailed(
                "The package playwright is missing. Install it: pip install 'toolfold[browser]'."
            )
        return bool(self._find_program())

    async def use(self, key: str, work: Callable[[BrowserTab], Awaitable[T]], *, opens: bool = False) -> T:
        """Run an action on a session's browser pages; with `opens`, start the browser if necessary."""
        try:
            return await self._thread.run(lambda: self._use(key, work, opens))
        except LoopThreadClosed:
            raise BrowserFailed("The runtime is closed. Open a new runtime.") from None

    async def close_pages(self, key: str) -> bool:
        """Close the browser pages of a session. Return False if there are none."""
        if not self._thread.is_running:
            return False
        return await self._thread.run(lambda: self._close_tab(key))

    def release(self, prefix: str) -> None:
        """Close, in the background, the pages of all sessions whose key starts with `prefix`."""
        self._thread.start(lambda: self._close_tabs(prefix))

    def close(self) -> None:
        """Close the browser, if it is running, and end the thread that controls it."""
        self._thread.close(self._shut_down, CLOSE_TIMEOUT_S)

    async def _use(self, key: str, work: Callable[[BrowserTab], Awaitable[T]], opens: bool) -> T:
        from playwright.async_api import Error

        tab = await self._get_tab(key, opens)
        async with tab.lock:
            tab.last_used = time.monotonic()
            try:
                return await work(tab)
            except TimeoutError:
                raise BrowserFailed("The page did not answer in time.") from None
            except Error as error:
                raise _explain_error(error) from None
            finally:
                tab.last_used = time.monotonic()

    async def _get_tab(self, key: str, opens: bool) -> BrowserTab:
        if self._running is not None and not self._running.browser.is_connected():
            await self._shut_down()
        if (tab := self._tabs.get(key)) is not None:
            return tab
        if not opens:
            raise BrowserFailed("No page is open. Open one with browser_navigate.")
        async with self._starting:
            if (tab := self._tabs.get(key)) is None:
                tab = self._tabs[key] = await self._open_tab()
        return tab

    async def _open_tab(self) -> BrowserTab:
        while len(self._tabs) >= self._settings.max_sessions:
            unused = {key: tab.last_used for key, tab in self._tabs.items() if not tab.lock.locked()}
            if not unused:
                raise BrowserFailed("All browser sessions are in use. Try again later.")
            await self._close_tab(min(unused, key=lambda key: unused[key]))
        running = await self._ensure_running()
        context = await running.browser.new_context(
            accept_downloads=False,
            service_workers="block",
            viewport={"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT},
        )
        return BrowserTab(context, running.proxy, timeout_s=self._settings.timeout_seconds)

    async def _ensure_running(self) -> _RunningBrowser:
        if self._running is None:
            self._running = await self._launch()
            self._sweeper = asyncio.create_task(self._close_idle())
        return self._running

    async def _launch(self) -> _RunningBrowser:
        from playwright.async_api import Error

        program = self._find_program()
        async with contextlib.AsyncExitStack() as cleanup:  # if a step fails or is cancelled
            home = Path(tempfile.mkdtemp(prefix="toolfold-browser-"))
            cleanup.callback(shutil.rmtree, home, ignore_errors=True)
            proxy = FilteringProxy(self._policy)
            cleanup.push_async_callback(proxy.close)
            try:
                playwright = await _start_driver()
                cleanup.push_async_callback(playwright.stop)
                browser = await self._launch_program(playwright, program, proxy, home)
            except Error as error:
                raise _explain_launch(program, error) from None
            cleanup.pop_all()
        return _RunningBrowser(playwright, browser, proxy, home)

    async def _launch_program(
        self, playwright: Playwright, program: str, proxy: FilteringProxy, home: Path
    ) -> Browser:
        return await playwright.chromium.launch(
            executable_path=program,
            args=list(_FLAGS),
            chromium_sandbox=self._uses_sandbox(),
            env=_build_environment(home),
            proxy={
                "server": await proxy.start(),
                "username": proxy.user,
                "password": proxy.password,
                "bypass": "<-loopback>",  # addresses of this machine must use the proxy, too
            },
            timeout=LAUNCH_TIMEOUT_S * 1000,
        )

    def _find_program(self) -> str:
        """Return the path of the browser program. Raises BrowserFailed if none is installed."""
        chosen = self._settings.executable
        if chosen is not None:
            if not os.access(chosen, os.X_OK):
                raise BrowserFailed(f"browser.executable: {str(chosen)!r} is not a program.")
            return str(chosen)
        for name in PROGRAMS:
            if path := shutil.which(name):
                return path
        raise BrowserFailed(
            "There is no Chromium or Chrome on this machine. Install one of them (Debian: "
            "apt install chromium), or set browser.executable."
        )

    def _uses_sandbox(self) -> bool:
        is_root = hasattr(os, "geteuid") and os.geteuid() == 0
        return self._settings.sandbox == "on" or (self._settings.sandbox == "auto" and not is_root)

    async def _close_idle(self) -> None:
        """Close idle pages, then the browser when no page is left."""
        while self._tabs or self._starting.locked():
            await asyncio.sleep(min(IDLE_CHECK_S, self._settings.idle_seconds))
            oldest = time.monotonic() - self._settings.idle_seconds
            for key, tab in list(self._tabs.items()):
                if tab.last_used < oldest and not tab.lock.locked():
                    await self._close_tab(key)
        self._sweeper = None  # this task itself, which must not be cancelled below
        await self._shut_down()

    async def _close_tab(self, key: str) -> bool:
        tab = self._tabs.pop(key, None)
        if tab is not None:
            await tab.close()
        return tab is not None

    async def _close_tabs(self, prefix: str) -> None:
        for key in [key for key in self._tabs if key.startswith(prefix)]:
            await self._close_tab(key)

    async def _shut_down(self) -> None:
        running, self._running = self._running, None
        sweeper, self._sweeper = self._sweeper, None
        self._tabs.clear()
        if sweeper is not None:
            sweeper.cancel()
        if running is not None:
            await running.close()


async def _start_driver() -> Playwright:
    """Start Playwright; if cancelled, wait until it has started and stop it, so that no process is left."""
    from playwright.async_api import async_playwright

    starting = asyncio.create_task(async_playwright().start())
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # it may fail to start
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await (await starting).stop()
        raise


def _build_environment(home: Path) -> dict[str, str | float | bool]:
    """Return environment variables that redirect the browser's files from the user's directory to `home`."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    directories = dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(home))
    return {**inherited, **directories}


def _explain_launch(program: str, error: Exception) -> CallError:
    if "sandbox" in str(error).lower():
        return BrowserFailed(
            f"{program} cannot use its sandbox here. Install the package chromium-sandbox, or set"
            " browser.sandbox to off."
        )
    reason = shorten(str(error).partition("\n")[0], 200)
    return BrowserFailed(f"{program} could not be started: {reason}.")


def _explain_error(error: Exception) -> CallError:
    """Convert a browser error to one with a fixed message, because pages control the original message."""
    text = str(error)
    if "Timeout" in text:
        reason = (
            "another element covers it"
            if "intercepts pointer events" in text
            else "it is not visible, not enabled or keeps moving"
        )
        return BrowserFailed(
            f"The element could not be used: {reason}. Call browser_snapshot to see the current page."
        )
    if "has been closed" in text or "crashed" in text:
        return BrowserFailed("The page was closed or crashed. Open it again with browser_navigate.")
    if text.startswith("Keyboard.press: Unknown key"):
        return BrowserFailed("There is no such key. Use a name such as Enter, Tab, ArrowDown or Control+A.")
    if reason := explain_network_error(error):
        return BrowserFailed(f"The page could not be opened: {reason}.")
    return BrowserFailed(
        "The browser could not perform the action: the element does not support it, or the page prevented"
        " it. Call browser_snapshot to see the current page."
    )
