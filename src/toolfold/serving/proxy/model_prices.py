"""Costs of model requests that count towards users' limits, estimated if a model's price is unknown.

A configured price (`proxy.prices`) comes first, then the list price of the model. A model without either is
taken to cost several times as much as the most expensive listed model of its provider: otherwise a limit on
cost could be evaded by naming such a model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from toolfold.config.proxy_settings import PriceSettings
from toolfold.core.errors import shorten
from toolfold.core.events import Usage
from toolfold.core.naming import matches_pattern
from toolfold.selection.turn.pricing import (
    UNKNOWN_FACTOR,
    Prices,
    cost_of_call,
    find_highest_prices,
    find_listed_prices,
    find_prices,
)

log = logging.getLogger(__name__)

MAX_REPORTED_MODELS = 100


class ModelPrices:
    """Computes the cost of model requests in dollars. Thread-safe."""

    def __init__(self, configured: Mapping[str, PriceSettings] = {}) -> None:
        """Use configured prices by model name; `*` matches any text, and the first match is used."""
        self._configured = {
            pattern: Prices(name=pattern, input=each.input, output=each.output)
            for pattern, each in configured.items()
        }
        self._lock = threading.Lock()
        self._reported: set[str] = set()

    def find_cost(self, model: str, usage: Usage) -> float | None:
        """Return the cost of a request in dollars; None if the model's price is unknown."""
        return cost_of_call(usage, self._find_prices(model))

    def charge(self, models: Sequence[str], provider: str, usage: Usage) -> float:
        """Return the cost of a request that counts towards users' limits, estimated if the price is unknown.

        `models` are names of the same model: a provider may name a version whose price is unknown.
        """
        known = next(filter(None, map(self._find_sure_prices, models)), None)
        if known is None:
            known = find_highest_prices(provider)
            self._report_unknown(models[-1] if models else "", known)
        return cost_of_call(usage, known) or 0.0

    def _find_sure_prices(self, model: str) -> Prices | None:
        """Return a model's configured prices, or an upper bound from the price list; None if unknown."""
        return self._find_configured(model) or find_listed_prices(model)

    def _find_prices(self, model: str) -> Prices | None:
        """Return the prices of a model or of the most similar listed model; None if they are unknown."""
        return self._find_configured(model) or find_prices(model)

    def _find_configured(self, model: str) -> Prices | None:
        matching = (each for pattern, each in self._configured.items() if matches_pattern(model, pattern))
        return next(matching, None)

    def _report_unknown(self, model: str, used: Prices) -> None:
        """Log an unknown price, once for each model."""
        with self._lock:
            if model in self._reported or len(self._reported) >= MAX_REPORTED_MODELS:
                return
            self._reported.add(model)
        log.warning(
            "the price of the model %r is unknown: for the limits of users, %g dollars per million input"
            " tokens and %g per million output tokens are assumed, %g times the price of %s. Set its price in"
            " proxy.prices.",
            shorten(model),
            used.input,
            used.output,
            UNKNOWN_FACTOR,
            used.name,
        )
