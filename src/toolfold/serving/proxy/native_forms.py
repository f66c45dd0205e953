"""Decide which requests use the provider's native deferred tools.

OpenAI's responses have a tool search that the client answers, Anthropic's messages have deferred tools and
references to them. A provider that refuses such a request gets the bridge tools from then on.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Literal

from toolfold.models.wire import Wire
from toolfold.serving.proxy.upstreams import Headers, Upstream

log = logging.getLogger(__name__)

MAX_REFUSED = 1_000


class NativeForms:
    """The setting `proxy.native`, and the models whose provider rejected native deferred tools."""

    def __init__(self, setting: Literal["auto", "on", "off"]) -> None:
        self._setting = setting
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    def are_used(self, upstream: Upstream, wire: Wire, model: str) -> bool:
        """Return True if requests for a model use the provider's native deferred tools.

        Other servers with the same API may ignore what they do not know, and the model would find no tool.
        """
        if self._setting == "off" or (upstream.provider, model) in self._refused:
            return False
        if self._setting == "auto" and (not upstream.is_official or wire.dialect.is_other_vendor(model)):
            return False
        return not wire.dialect.explain_missing_native(model)

    def mark_refused(self, upstream: Upstream, model: str) -> None:
        """Use `tool_search` for a model from now on, because its provider rejected native deferred tools."""
        log.warning(
            "provider %r cannot load tools on demand with model %r; `tool_search` is used instead",
            upstream.provider,
            model,
        )
        self._refused[upstream.provider, model] = None
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)


def add_header_value(headers: Headers, name: str, value: str) -> Headers:
    """Add a value to a comma-separated header such as `anthropic-beta`; return all headers."""
    key, added = name.lower().encode(), value.encode()
    present = [each for each in headers if each[0].lower() == key]
    values = [part.strip() for _, each in present for part in each.split(b",") if part.strip()]
    if added in values:
        return headers
    kept = [each for each in headers if each[0].lower() != key]
    return [*kept, (key, b",".join([*values, added]))]
