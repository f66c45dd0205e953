"""OpenTelemetry: spans and metrics of turns, model calls and tool calls, with the real SDK and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener, recording_tool
from toolfold import Runtime, ToolCall, build_tool
from toolfold.agent import Agent
from toolfold.core.events import Event, ToolStarted
from toolfold.core.types import CallContext, Effect, Json
from toolfold.models.provider_errors import ProviderError
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.state.store import SqliteSessionStore

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from toolfold.config.telemetry_settings import TelemetrySettings
from toolfold.runtime.telemetry.otel_reader import OtelReader
from toolfold.runtime.telemetry.otlp import EXPORT_TIMEOUT_S, OtlpExport

USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}


class Recorder:
    """Collects spans and metrics in memory."""

    def __init__(self, *, include_content: bool = False) -> None:
        self._exporter, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        traces, self._meters = TracerProvider(), MeterProvider([self._metrics])
        traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.reader = OtelReader(
            traces.get_tracer("test"), self._meters.get_meter("test"), include_content=include_content
        )

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def read_metrics(self) -> dict[str, list[Any]]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in metrics}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def parent_of(span: ReadableSpan, spans: dict[str, ReadableSpan]) -> str:
    """Return the name of a span's parent; empty if it has none."""
    identity = span.parent.span_id if span.parent else None
    return next((name for name, each in spans.items() if each.context.span_id == identity), "")


def add_boats(runtime: Runtime) -> None:
    runtime.registry.add(recording_tool("count_boats", "harbour", []))


async def test_spans_and_metrics_of_a_call_through_the_tool_call_bridge_name_the_inner_tool(
    open_test_runtime: RuntimeOpener, store: SqliteSessionStore
) -> None:
    runtime = open_test_runtime({"tools": {"tool_search": {"enabled": "on"}}})
    add_boats(runtime)
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    wrapped = ToolCall("tool_call", {"name": "count_boats", "arguments": {}}, "c1")
    steps = [ScriptedReply(calls=[wrapped], usage=USAGE), ScriptedReply("Three.", usage=USAGE)]
    agent = Agent(ScriptedProvider(steps, model="gpt-4.1"), runtime=runtime, store=store)
    assert (await agent.run("How many boats?")).ok
    spans = recorder.spans
    assert set(spans) == {"invoke_agent toolfold", "chat gpt-4.1", "execute_tool count_boats"}
    turn, tool = spans["invoke_agent toolfold"], spans["execute_tool count_boats"]
    assert turn.parent is None
    assert {parent_of(spans[name], spans) for name in set(spans) - {turn.name}} == {turn.name}
    assert turn.attributes is not None
    assert turn.attributes["gen_ai.conversation.id"] == agent.session_id
    assert turn.attributes["gen_ai.usage.input_tokens"] == 2_000_000
    assert turn.attributes["toolfold.cost"] == pytest.approx(4.0, rel=0.01)
    assert tool.attributes is not None
    assert tool.attributes["gen_ai.tool.name"] == "count_boats"
    assert tool.attributes["gen_ai.tool.call.id"] == "c1"
    assert not any("boats?" in str(span.attributes) for span in spans.values())
    metrics = recorder.read_metrics()
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum for point in metrics["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": 2_000_000, "output": 20}
    assert [point.value for point in metrics["toolfold.cost"]] == [pytest.approx(4.0, rel=0.01)]
    assert [point.attributes["gen_ai.tool.name"] for point in metrics["toolfold.tool.duration"]] == [
        "count_boats"
    ]


async def test_spans_contain_messages_and_tool_results_if_include_content_is_set(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    add_boats(runtime)
    recorder = Recorder(include_content=True)
    runtime.events.subscribe(recorder.reader)
    steps: list[Step] = [ScriptedReply(calls=[ToolCall("count_boats", {})]), "Three."]
    await Agent(ScriptedProvider(steps), runtime=runtime, store=store).run("How many boats?")
    turn, tool = recorder.spans["invoke_agent toolfold"], recorder.spans["execute_tool count_boats"]
    assert turn.attributes is not None
    assert "How many boats?" in str(turn.attributes["gen_ai.input.messages"])
    assert "Three." in str(turn.attributes["gen_ai.output.messages"])
    assert tool.attributes is not None
    assert "count_boats" in str(tool.attributes["gen_ai.tool.call.result"])


async def test_span_of_a_sub_agents_turn_is_a_child_of_the_delegate_task_call_that_started_it(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    add_boats(runtime)
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    delegate = ToolCall("delegate_task", {"goal": "Count the boats", "toolsets": ["harbour"]})
    count = ScriptedReply(calls=[ToolCall("count_boats", {})])
    steps: list[Step] = [ScriptedReply(calls=[delegate]), count, "Three.", "There are three."]
    assert (await Agent(ScriptedProvider(steps), runtime=runtime, store=store).run("Delegate")).ok
    turns = [span for span in recorder._exporter.get_finished_spans() if span.name == "invoke_agent toolfold"]
    inner, outer = turns
    call = recorder.spans["execute_tool delegate_task"]
    assert inner.parent is not None
    assert (inner.parent.span_id, outer.parent) == (call.context.span_id, None)
    assert len({span.context.trace_id for span in recorder._exporter.get_finished_spans()}) == 1


async def test_span_of_a_tool_call_made_by_a_handler_is_a_child_of_the_span_of_the_handler(
    runtime: Runtime,
) -> None:
    async def count_all(_: Json, context: CallContext) -> Json:
        assert context.nested is not None
        return {"north": (await context.nested("count_boats", {})).ok}

    add_boats(runtime)
    schema = {"description": "Count all boats."}
    runtime.registry.add(build_tool(name="count_all", toolset="harbour", schema=schema, handler=count_all))
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    assert (await runtime.session().call("count_all")).ok
    spans = recorder.spans
    assert parent_of(spans["execute_tool count_boats"], spans) == "execute_tool count_all"


async def test_tool_name_invented_by_the_model_appears_in_no_span_or_metric(runtime: Runtime) -> None:
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    await runtime.session().call("the password is hunter2")
    (span,) = recorder.spans.values()
    assert span.name == "execute_tool (unknown)"
    (point,) = recorder.read_metrics()["toolfold.tool.duration"]
    assert "hunter2" not in f"{span.to_json()} {point.attributes}"


async def test_span_of_a_tool_call_refused_by_the_user_has_error_type_refused_and_approval_events(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime(approver=lambda _: False)
    effects = frozenset({Effect.DESTRUCTIVE})
    runtime.registry.add(recording_tool("sink_boats", "harbour", [], effects=effects))
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    await runtime.session().call("sink_boats")
    span = recorder.spans["execute_tool sink_boats"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "refused"
    assert [event.name for event in span.events] == ["approval_asked", "approval_answered"]
    assert span.parent is None


async def test_cancelling_a_tool_call_ends_its_span_with_an_error(runtime: Runtime) -> None:
    started = asyncio.Event()

    async def wait(_args: Any, _context: Any) -> None:
        await asyncio.Event().wait()

    def detect_start(event: Event) -> None:
        if isinstance(event, ToolStarted):
            started.set()

    runtime.registry.register(name="wait", toolset="harbour", schema={}, handler=wait, is_async=True)
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    runtime.events.subscribe(detect_start)
    call = asyncio.create_task(runtime.session().call("wait"))
    await asyncio.wait_for(started.wait(), 60)
    call.cancel()
    await asyncio.wait({call})
    assert recorder.spans["execute_tool wait"].status.status_code is StatusCode.ERROR


async def test_provider_error_sets_the_error_status_of_the_turn_span(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    recorder = Recorder()
    runtime.events.subscribe(recorder.reader)
    problem = ProviderError("no such model", kind="not_found")
    await Agent(ScriptedProvider([problem]), runtime=runtime, store=store).run("Hello")
    turn = recorder.spans["invoke_agent toolfold"]
    assert turn.status.status_code is StatusCode.ERROR
    assert turn.attributes is not None
    assert turn.attributes["toolfold.stop_reason"] == "error"


@contextlib.contextmanager
def serve_collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Receive OTLP over HTTP on a free port; yields the URL and the received bodies by path."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received.append((self.path, body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keep the test output quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", received
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


async def test_spans_and_metrics_are_sent_to_an_otlp_collector_over_http(
    open_test_runtime: RuntimeOpener,
) -> None:
    with serve_collector() as (url, received):
        settings = {"otel": True, "otlp_endpoint": url, "service_name": "harbour-office"}
        runtime = open_test_runtime({f"telemetry.{key}": value for key, value in settings.items()})
        add_boats(runtime)
        await runtime.session().call("count_boats")
        await asyncio.to_thread(runtime.close)
    assert {path for path, _ in received} == {"/v1/traces", "/v1/metrics"}
    traces = ExportTraceServiceRequest.FromString(dict(received)["/v1/traces"])
    (resource,) = traces.resource_spans
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "harbour-office"
    assert [span.name for span in resource.scope_spans[0].spans] == ["execute_tool count_boats"]
    metrics = ExportMetricsServiceRequest.FromString(dict(received)["/v1/metrics"])
    assert [each.name for each in metrics.resource_metrics[0].scope_metrics[0].metrics] == [
        "toolfold.tool.duration"
    ]


async def test_tool_calls_and_closing_the_runtime_succeed_if_the_otlp_collector_is_unreachable(
    open_test_runtime: RuntimeOpener,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        runtime = open_test_runtime({"telemetry.otel": True, "telemetry.otlp_endpoint": url})
        add_boats(runtime)
        assert (await runtime.session().call("count_boats")).ok
        await asyncio.wait_for(asyncio.to_thread(runtime.close), 60)


@pytest.mark.thorough
def test_closing_the_otlp_exporter_does_not_hang_if_the_collector_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        export = OtlpExport.open(TelemetrySettings(otel=True, otlp_endpoint=url), {})
        tracer = export.traces.get_tracer("test")
        for _ in range(1500):  # three requests, each of which waits for its time limit
            tracer.start_span("count_boats").end()
        closing = threading.Thread(target=export.close, daemon=True)
        closing.start()
        closing.join(2 * EXPORT_TIMEOUT_S)
        assert not closing.is_alive()
