"""Let a language model write example messages for many tools: batches, retries, cost, progress.

Every batch is saved as soon as it is written, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from toolfold.core.events import Usage
from toolfold.core.types import Tool
from toolfold.models.client import ModelClient, RetryPolicy, call_model
from toolfold.models.model_names import ModelName
from toolfold.models.provider_errors import ProviderError
from toolfold.models.reply import ModelRequest, Reply
from toolfold.selection.enrichment.prompts import MessageOptions, build_request, parse_reply
from toolfold.selection.retrieval.example_messages import MessageChecker, MessageRecord
from toolfold.selection.turn.pricing import cost_of_call, find_prices
from toolfold.selection.turn.tokens import TokenCounter, tokenizer_for

log = logging.getLogger(__name__)

BATCH_SIZE = 10
MAX_PARALLEL_CALLS = 3
BATCH_TIMEOUT_S = 300.0
TOKENS_PER_MESSAGE = 22
"""Output per message that an estimate assumes, with quotes and separators."""
_MAX_TOKENS_PER_MESSAGE = 120
_REPLY_OVERHEAD_TOKENS = 400

SaveRecords = Callable[[Sequence[MessageRecord]], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Estimated tokens and dollars for writing example messages."""

    tools: int
    calls: int
    usage: Usage
    dollars: float | None
    """None if the model's price is unknown."""


def estimate_cost(
    tools: Sequence[Tool], options: MessageOptions, model: str, batch_size: int = BATCH_SIZE
) -> CostEstimate:
    """Estimate the cost of writing example messages for tools, from the requests that would be sent."""
    counter = TokenCounter(tokenizer_for(model))
    batches = list(_split_batches(tools, batch_size))
    sent = sum(counter.text(text) for batch in batches for text in build_request(batch, options))
    written = len(tools) * (options.count * TOKENS_PER_MESSAGE + 6)
    usage = Usage(input_tokens=sent, output_tokens=written)
    return CostEstimate(len(tools), len(batches), usage, cost_of_call(usage, find_prices(model)))


@dataclass(slots=True)
class WriteReport:
    """Result of writing example messages: tools with messages, tools without messages, rejected messages."""

    written: int = 0
    """Tools that have messages now."""
    failed: list[str] = field(default_factory=list)
    """Tools for which the model wrote no usable message."""
    rejected: list[tuple[str, str, str]] = field(default_factory=list)
    """Rejected messages, each with its tool and the reason."""
    usage: Usage = field(default_factory=Usage)
    error: ProviderError | None = None
    """Why the run stopped early."""


class MessageWriter:
    """Writes example messages for tools with a language model."""

    def __init__(
        self,
        client: ModelClient,
        name: ModelName,
        checker: MessageChecker,
        *,
        options: MessageOptions,
        date: str,
        batch_size: int = BATCH_SIZE,
        parallel_calls: int = MAX_PARALLEL_CALLS,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Create a writer; if `name` has no model part, the model named in the replies is recorded."""
        self._client, self._name, self._checker = client, name, checker
        self._options, self._date, self._batch_size = options, date, batch_size
        self._parallel_calls, self._retries = parallel_calls, retries or RetryPolicy()

    async def write(self, tools: Sequence[Tool], save: SaveRecords, progress: Progress) -> WriteReport:
        """Write example messages for the tools and save them batch by batch.

        Tools without a usable message are tried once more, one by one. Stops at the first call that fails
        after all retries; what was written until then is saved.
        """
        report, total = WriteReport(), len(tools)
        left = list(tools)
        for size in (self._batch_size, 1):
            batches = list(_split_batches(left, size))
            left = await self._write_batches(batches, save, report, lambda: progress(report.written, total))
            if report.error or not left:
                break
        report.failed = [tool.name for tool in left] if report.error is None else []
        return report

    async def _write_batches(
        self,
        batches: Sequence[Sequence[Tool]],
        save: SaveRecords,
        report: WriteReport,
        on_batch: Callable[[], None],
    ) -> list[Tool]:
        """Write example messages for all batches of tools in parallel; return the tools that got none."""
        pending, left = iter(batches), list[Tool]()

        async def work() -> None:
            for batch in pending:
                if report.error is not None:
                    return
                try:
                    left.extend(await self._write_batch(batch, save, report))
                except ProviderError as error:
                    report.error = report.error or error
                    return
                on_batch()

        await asyncio.gather(*(work() for _ in range(self._parallel_calls)))
        return left

    async def _write_batch(self, batch: Sequence[Tool], save: SaveRecords, report: WriteReport) -> list[Tool]:
        """Write and save example messages for a batch of tools; return the tools without usable messages."""
        reply = await self._call_model(batch, report)
        messages_by_index = parse_reply(reply.text, len(batch))
        model = str(self._name if self._name.model else ModelName(self._name.provider, reply.model))
        records, left = [], []
        for index, tool in enumerate(batch):
            checked = self._checker.check(tool, messages_by_index.get(index, ()))
            report.rejected += [(tool.name, text, why) for text, why in checked.rejected.items()]
            messages = checked.accepted[: self._options.count]
            if messages:
                records.append(MessageRecord.of(tool, messages, model=model, date=self._date))
            else:
                left.append(tool)
        if records:
            save(records)
        report.written += len(records)
        return left

    async def _call_model(self, batch: Sequence[Tool], report: WriteReport) -> Reply:
        system, text = build_request(batch, self._options)
        request = ModelRequest(
            model=self._name.model,
            system=system,
            messages=[{"role": "user", "content": text}],
            max_output_tokens=_REPLY_OVERHEAD_TOKENS
            + len(batch) * self._options.count * _MAX_TOKENS_PER_MESSAGE,
        )
        try:
            async with asyncio.timeout(BATCH_TIMEOUT_S):
                reply = await call_model(
                    self._client,
                    request,
                    on_delta=lambda _: None,
                    on_retry=lambda attempt, delay, error: log.warning(
                        "attempt %d to get example messages from the model failed, retrying in %.0f s: %s",
                        attempt,
                        delay,
                        error,
                    ),
                    on_stream=lambda _: None,
                    retries=self._retries,
                )
        except TimeoutError:
            raise ProviderError(
                f"the model did not finish its reply within {BATCH_TIMEOUT_S:.0f} s", kind="timeout"
            ) from None
        report.usage += reply.usage
        return reply


def _split_batches(tools: Sequence[Tool], size: int) -> Iterator[Sequence[Tool]]:
    for start in range(0, len(tools), size):
        yield tools[start : start + size]
