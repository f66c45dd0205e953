"""Browser pages of one session, with actions such as open, click, type, scroll and screenshot.

Elements are named by references such as e12, which a snapshot of the page contains. Everything returned here
is text of the page and therefore untrusted; the caller marks it as such. Knows nothing of tools and sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.internet.address_policy import check_url
from toolfold.tools.internet.filtering_proxy import FilteringProxy

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Download, Locator, Page, Request

__all__ = ["BrowserFailed", "BrowserTab", "PageState"]

Direction = Literal["up", "down"]

ACTION_TIMEOUT_S = 10.0
SNAPSHOT_TIMEOUT_S = 20.0
SETTLE_TIMEOUT_S = 1.5
NAVIGATION_DELAY_S = 0.15
"""Time that a page gets to start a navigation after a click."""
MAX_PAGES = 10
MAX_ATTEMPTS = 5
MAX_CONSOLE_ENTRIES = 200
MAX_CONSOLE_CHARS = 1_000
MAX_SNAPSHOT_CHARS = 40_000
MAX_IMAGES = 100
MAX_FIELD_CHARS = 500
MAX_URL_CHARS = 2_000
MAX_SCREENSHOT_HEIGHT = 6_000
_INTERRUPTED = "interrupted by another navigation"
_ERROR_PAGE = "chrome-error:"
_EMPTY_PAGE = "about:blank"
_URL_CHARACTERS = "%!$&'()*+,;=:@/?#~-._[]…"
_NETWORK_ERROR = re.compile(r"Page\.\w+: net::ERR_([A-Z0-9_]+)")
_NETWORK_REASONS = {
    "NAME_NOT_RESOLVED": "there is no such host",
    "CONNECTION_REFUSED": "the server refused the connection",
    "CONNECTION_RESET": "the server closed the connection",
    "CONNECTION_CLOSED": "the server closed the connection",
    "EMPTY_RESPONSE": "the server sent no answer",
    "INVALID_HTTP_RESPONSE": "the server did not answer in HTTP",
    "INVALID_REDIRECT": "the server redirects to an invalid URL",
    "TOO_MANY_REDIRECTS": "the server redirects too often",
    "TUNNEL_CONNECTION_FAILED": "the server could not be reached",
    "SSL_PROTOCOL_ERROR": "the server does not support HTTPS at this port",
    "CERT_AUTHORITY_INVALID": "the server's certificate is not trusted",
    "CERT_COMMON_NAME_INVALID": "the server's certificate is for another host",
    "CERT_DATE_INVALID": "the server's certificate has expired",
    "ABORTED": "loading was aborted",
}
_REF = re.compile(r"(?:f\d{1,4})?e\d{1,7}")
_LIST_IMAGES = """(images, limit) => images.slice(0, limit).map(each => ({
  src: String(each.currentSrc || each.src).slice(0, 2000), alt: String(each.alt).slice(0, 2000),
  width: Number(each.naturalWidth), height: Number(each.naturalHeight)}))"""
_SCROLL_STATE = """() => ({top: Math.round(window.scrollY), height: document.documentElement.scrollHeight,
  visible: window.innerHeight})"""


class BrowserFailed(CallError):
    """Raised when the browser could not perform an action."""


@dataclass(frozen=True, slots=True)
class PageState:
    """State of the current browser page: URL, title and elements."""

    url: str
    title: str
    snapshot: str = ""


class BrowserTab:
    """Browser pages of one session, with cookies that no other session shares."""

    def __init__(self, context: BrowserContext, proxy: FilteringProxy, *, timeout_s: float) -> None:
        self._context, self._proxy, self._timeout_s = context, proxy, timeout_s
        self._pages: list[Page] = []
        self._requested_url = ""
        self.console: deque[Json] = deque(maxlen=MAX_CONSOLE_ENTRIES)
        self.lock = asyncio.Lock()
        self.last_used = time.monotonic()
        context.on("page", self._add_page)

    @property
    def page(self) -> Page:
        """Return the most recently opened page that is still open. Raises BrowserFailed if there is none."""
        for page in reversed(self._pages):
            if not page.is_closed():
                return page
        raise BrowserFailed("No page is open. Open one with browser_navigate.")

    async def navigate(self, url: str) -> PageState:
        """Open a URL in the current page. Raises AddressRefused, or BrowserFailed if it cannot be opened."""
        check_url(url)
        page = next((each for each in reversed(self._pages) if not each.is_closed()), None)
        page = page or await self._open_page()
        self._requested_url = ""
        try:
            await self._open_url(page, url)
        except Exception as error:
            raise self._explain_failure(url, error) from None
        await self._settle()
        return await self.describe(with_snapshot=True)

    async def _open_url(self, page: Page, url: str) -> None:
        """Open a URL; retry if the browser's error page for a previous URL interrupts the navigation.

        A page that redirects by script to another URL while it loads counts as opened.
        """
        for attempt in range(MAX_ATTEMPTS):
            try:
                await page.goto(url, wait_until="domcontentloaded", timeout=self._timeout_s * 1000)
                return
            except Exception as error:
                if _INTERRUPTED not in str(error):
                    raise
                if _ERROR_PAGE not in str(error):
                    return
                await asyncio.sleep(NAVIGATION_DELAY_S * (attempt + 1))
        raise BrowserFailed("The page could not be opened: an error page replaced it.")

    async def _open_page(self) -> Page:
        page = await self._context.new_page()
        if page not in self._pages:  # the event may come later than the page
            self._add_page(page)
        return page

    async def go_back(self) -> PageState:
        """Go back to the previous page in the history. Raises BrowserFailed if there is none."""
        page, before = self.page, self.page.url
        await page.go_back(wait_until="domcontentloaded", timeout=self._timeout_s * 1000)
        if page.url == _EMPTY_PAGE:  # where every tab begins
            await page.go_forward(wait_until="domcontentloaded", timeout=self._timeout_s * 1000)
        await self._settle()
        if page.url == before:
            raise BrowserFailed("There is no previous page.")
        return await self.describe(with_snapshot=True)

    async def click(self, ref: str) -> PageState:
        """Click the page element with this reference."""
        before = self.page.url
        element = await self._find(ref)
        await element.click(timeout=ACTION_TIMEOUT_S * 1000)
        return await self._state_after(before)

    async def type_text(self, ref: str, text: str, *, submit: bool) -> PageState:
        """Replace the text of an input field, or choose an option of a drop-down list by its label."""
        before = self.page.url
        element = await self._find(ref)
        if await element.evaluate("each => each.tagName") == "SELECT":
            await element.select_option(label=text, timeout=ACTION_TIMEOUT_S * 1000)
        else:
            await element.fill(text, timeout=ACTION_TIMEOUT_S * 1000)
        if submit:
            await element.press("Enter", timeout=ACTION_TIMEOUT_S * 1000)
        return await self._state_after(before)

    async def press(self, key: str) -> PageState:
        """Press a key or a combination such as Control+A."""
        before = self.page.url
        await self.page.keyboard.press(key)
        return await self._state_after(before)

    async def scroll(self, direction: Direction, pages: float) -> Json:
        """Scroll the page and return the new position."""
        size = self.page.viewport_size or {"width": 1280, "height": 800}
        await self.page.mouse.move(size["width"] / 2, size["height"] / 2)
        distance = size["height"] * pages * (1 if direction == "down" else -1)
        await self.page.mouse.wheel(0, distance)
        await asyncio.sleep(NAVIGATION_DELAY_S)
        state = await self.page.evaluate(_SCROLL_STATE)
        return {name: int(state[name]) for name in ("top", "height", "visible")}

    async def describe(self, *, with_snapshot: bool = False, depth: int | None = None) -> PageState:
        """Return the URL and title of the current page and, with `with_snapshot`, its elements."""
        page = self.page
        snapshot = ""
        if with_snapshot:
            snapshot = await page.aria_snapshot(mode="ai", depth=depth, timeout=SNAPSHOT_TIMEOUT_S * 1000)
        async with asyncio.timeout(ACTION_TIMEOUT_S):
            title = await page.title()
        return PageState(_encode_url(page.url), shorten(title, MAX_FIELD_CHARS), _cut_snapshot(snapshot))

    async def list_images(self) -> list[Json]:
        """Return source, description and size of the images on the current page."""
        async with asyncio.timeout(ACTION_TIMEOUT_S):
            found = await self.page.eval_on_selector_all("img", _LIST_IMAGES, MAX_IMAGES)
        return [_describe_image(each) for each in found[:MAX_IMAGES] if isinstance(each, dict)]

    async def take_screenshot(self, *, full_page: bool) -> bytes:
        """Return a PNG of the visible part of the page; with `full_page`, up to a maximum height."""
        image: bytes
        if not full_page:
            image = await self.page.screenshot(timeout=SNAPSHOT_TIMEOUT_S * 1000)
            return image
        size = self.page.viewport_size or {"width": 1280, "height": 800}
        state = await self.page.evaluate(_SCROLL_STATE)
        height = max(1, min(int(state["height"]), MAX_SCREENSHOT_HEIGHT))
        area: Any = {"x": 0, "y": 0, "width": size["width"], "height": height}
        image = await self.page.screenshot(full_page=True, clip=area, timeout=SNAPSHOT_TIMEOUT_S * 1000)
        return image

    async def close(self) -> None:
        """Close all pages of the session and delete their cookies."""
        with contextlib.suppress(Exception):  # the browser may be gone
            await self._context.close()

    def _add_page(self, page: Page) -> None:
        """Add a new browser page, such as a popup, to the session's pages; close it if there are too many."""
        self._pages = [each for each in self._pages if not each.is_closed()]
        if page in self._pages:
            return
        if len(self._pages) >= MAX_PAGES:
            asyncio.get_running_loop().create_task(_close_quietly(page))
            return
        self._pages.append(page)
        page.on("request", self._note_request)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.on("dialog", self._answer_dialog)
        page.on("download", self._note_download)

    def _note_request(self, request: Request) -> None:
        if request.is_navigation_request() and request.frame == request.frame.page.main_frame:
            self._requested_url = request.url

    def _note_message(self, message: ConsoleMessage) -> None:
        self._note(message.type, message.text)

    def _note_download(self, download: Download) -> None:
        self._note("download", f"refused: {download.url}")

    async def _answer_dialog(self, dialog: Dialog) -> None:
        """Close a JavaScript dialog, which blocks the page: accept alerts, dismiss other dialogs."""
        self._note("dialog", f"{dialog.type}: {dialog.message}")
        with contextlib.suppress(Exception):  # the page may have been closed meanwhile
            await (dialog.accept() if dialog.type in ("alert", "beforeunload") else dialog.dismiss())

    def _note(self, kind: str, text: str) -> None:
        self.console.append({"type": kind, "text": shorten(text, MAX_CONSOLE_CHARS)})

    async def _find(self, ref: str) -> Locator:
        """Return the page element with this reference. Raises BrowserFailed if there is no such element."""
        if _REF.fullmatch(ref):
            element = self.page.locator(f"aria-ref={ref}")
            if await element.count():
                return element
        raise BrowserFailed(
            f"The page has no element {shorten(ref, 40)!r}. References change with the page: get current "
            "references with browser_snapshot."
        )

    async def _state_after(self, url: str) -> PageState:
        """Return the page's state after an action, with the page's elements if its URL is no longer `url`."""
        await asyncio.sleep(NAVIGATION_DELAY_S)
        await self._settle()
        return await self.describe(with_snapshot=self.page.url != url)

    async def _settle(self) -> None:
        """Wait for a limited time until the page is loaded, because some pages never finish loading."""
        with contextlib.suppress(Exception):
            await self.page.wait_for_load_state("domcontentloaded", timeout=ACTION_TIMEOUT_S * 1000)
            await self.page.wait_for_load_state("networkidle", timeout=SETTLE_TIMEOUT_S * 1000)

    def _explain_failure(self, url: str, error: Exception) -> BrowserFailed:
        text = str(error)
        # The last request was for the target of a redirect, with the host in the browser's spelling.
        host = urlsplit(self._requested_url or url).hostname or ""
        if refusal := self._proxy.refusal_of(host):
            return BrowserFailed(refusal)
        if "Download is starting" in text:
            return BrowserFailed(
                "The URL is a download, which the browser refuses. Read it with web_extract."
            )
        if "Timeout" in text:
            return BrowserFailed(f"{shorten(host)} did not answer within {self._timeout_s:g} s.")
        reason = explain_network_error(error) or "the browser failed to load it"
        return BrowserFailed(f"The page could not be opened: {reason}.")


def explain_network_error(error: Exception) -> str:
    """Return a predefined reason for a failed navigation; empty if it was not a network error."""
    found = _NETWORK_ERROR.match(str(error))
    return _NETWORK_REASONS.get(found[1], "a network error") if found else ""


def _encode_url(url: str) -> str:
    """Percent-encode and truncate a page's URL, so that it cannot contain instructions to the model."""
    return shorten(quote(url[:MAX_URL_CHARS], safe=_URL_CHARACTERS), MAX_URL_CHARS)


def _cut_snapshot(snapshot: str) -> str:
    if len(snapshot) <= MAX_SNAPSHOT_CHARS:
        return snapshot
    start = snapshot[:MAX_SNAPSHOT_CHARS].rpartition("\n")[0]
    return f"{start}\n… (the page has more elements; limit the depth to see the others)"


def _describe_image(image: Json) -> Json:
    source = str(image.get("src") or "")
    if source.startswith("data:"):
        source = f"{source[:40]}…"  # the image is contained in the page
    described = {"src": _encode_url(source), "alt": shorten(str(image.get("alt") or ""))}
    sizes = {name: image[name] for name in ("width", "height") if isinstance(image.get(name), int)}
    return {**described, **sizes}


async def _close_quietly(page: Page) -> None:
    with contextlib.suppress(Exception):
        await page.close()
