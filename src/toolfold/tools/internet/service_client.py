"""Send JSON requests to a web service configured by the user, with limits and clear errors.

Connects only to addresses that the policy allows. The key is sent to the given URL and not after redirects.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json
from toolfold.tools.internet.address_policy import AddressPolicy
from toolfold.tools.internet.fetching import FetchedDocument, Fetcher, FetchLimits

MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClient:
    """Client of one web service used by a tool."""

    name: str
    """Name of the service in error messages, such as `image service`."""
    policy: AddressPolicy
    timeout_s: float
    max_bytes: int
    mark: Callable[[str], Awaitable[str]]
    """Function that marks injected instructions in text from the service."""
    error: type[CallError] = CallError
    """Exception class that is raised for errors."""

    async def request(
        self,
        url: str,
        *,
        method: str = "POST",
        payload: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> FetchedDocument:
        """Send a request with a JSON payload and return the successful response.

        Raises an error of the type `error` for other statuses and too long responses, and those of Fetcher.
        """
        sent = {"Accept": "application/json", **(headers or {})}
        body = None
        if payload is not None:
            sent["Content-Type"], body = "application/json", json.dumps(payload).encode()
        document = await self.fetcher(0).fetch(url, method=method, headers=sent, body=body)
        if not 200 <= document.status < 300:
            details = await self.mark(shorten(document.data.decode(errors="replace"), MAX_ERROR_CHARS))
            raise self.error(
                f"The {self.name} answered with the status {document.status}: {details}",
                status=document.status,
            )
        if document.is_truncated:
            raise self.error(f"The response of the {self.name} is larger than {self.max_bytes:,} bytes.")
        return document

    async def request_json(self, url: str, **options: Any) -> Any:
        """Send a request and return the JSON value of the response."""
        document = await self.request(url, **options)
        try:
            return json.loads(document.data)
        except (ValueError, RecursionError):
            raise self.error(f"The response of the {self.name} is not valid JSON.") from None

    async def request_object(self, url: str, **options: Any) -> Json:
        """Send a request and return the JSON object of the response."""
        answer = await self.request_json(url, **options)
        if not isinstance(answer, dict):
            raise self.error(f"The response of the {self.name} is not a JSON object.")
        return answer

    def fetcher(self, max_redirects: int) -> Fetcher:
        """Return a fetcher with the limits of this client."""
        return Fetcher(self.policy, FetchLimits(self.timeout_s, self.max_bytes, max_redirects))
