"""Counters for Prometheus: what is counted, and that no names are shown."""

from __future__ import annotations

from toolfold.core.events import (
    ApprovalAnswered,
    EventBus,
    IndexUpdated,
    ModelReplied,
    ToolFinished,
    ToolsSearched,
    Usage,
)
from toolfold.runtime.telemetry.prometheus import PrometheusMetrics


def finish_call(*, ok: bool = True, refused: bool = False, duration_s: float = 0.02) -> ToolFinished:
    return ToolFinished(
        session_id="s", call_id="1", tool="secret_tool", ok=ok, refused=refused, duration_s=duration_s
    )


def test_prometheus_metrics_do_not_contain_names_of_tools_models_or_queries() -> None:
    bus, metrics = EventBus(), PrometheusMetrics()
    bus.subscribe(metrics)
    bus.publish(finish_call())
    bus.publish(finish_call(ok=False, duration_s=700.0))
    bus.publish(finish_call(ok=False, refused=True))
    bus.publish(ToolsSearched(session_id="s", call_id="a", queries=("secret_query",), found=()))
    usage = Usage(input_tokens=1_000, output_tokens=50)
    bus.publish(ModelReplied(session_id="s", turn=1, model="secret_model", usage=usage))
    bus.publish(ApprovalAnswered(session_id="s", call_id="1", tool="secret_tool", allowed=True))
    bus.publish(IndexUpdated(tools=12, embedded=12))
    lines = metrics.render(is_ready=False).splitlines()
    for expected in (
        'toolfold_tool_calls_total{outcome="ok"} 1',
        'toolfold_tool_calls_total{outcome="error"} 1',
        'toolfold_tool_calls_total{outcome="refused"} 1',
        "toolfold_tool_searches_total 1",
        "toolfold_model_calls_total 1",
        'toolfold_model_tokens_total{type="input"} 1000',
        'toolfold_model_tokens_total{type="output"} 50',
        'toolfold_tool_call_duration_seconds_bucket{le="0.025"} 2',
        'toolfold_tool_call_duration_seconds_bucket{le="300.0"} 2',
        'toolfold_tool_call_duration_seconds_bucket{le="+Inf"} 3',
        "toolfold_tool_call_duration_seconds_count 3",
        'toolfold_approval_answers_total{outcome="allowed"} 1',
        "toolfold_index_tools 12",
        "toolfold_ready 0",
    ):
        assert expected in lines
    assert not any("secret" in line for line in lines)


def test_prometheus_counters_are_rendered_as_zero_before_the_first_event() -> None:
    text = PrometheusMetrics().render(is_ready=True)
    assert 'toolfold_approval_answers_total{outcome="allowed"} 0' in text
    assert "toolfold_model_calls_total 0" in text
