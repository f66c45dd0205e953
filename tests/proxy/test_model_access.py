"""Which models and keys of providers users may use through the proxy, and what unknown models cost."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.proxy.harness import RunningProxy, serve_proxy
from tests.proxy.upstream import Prepared, Upstream, serve_upstream
from toolfold.config.proxy_settings import PriceSettings
from toolfold.core.errors import ConfigError
from toolfold.core.events import Usage
from toolfold.serving.proxy.model_prices import ModelPrices
from toolfold.state.users.directory import Directory, Team, User
from toolfold.state.users.quotas import Quotas, SqliteQuotaStore, user_account

MILLION = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
REPLY = {
    "id": "1",
    "model": "mystery-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000},
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with serve_upstream() as made:
        yield made


@pytest.fixture
def served(tmp_path: Path, upstream: Upstream) -> Iterator[RunningProxy]:
    upstream.received.clear()
    upstream.prepared.clear()
    settings = {
        "providers.house": {"base_url": f"{upstream.url}/v1", "key_env": "HOUSE_KEY"},
        "proxy.upstreams": {"house-*": {"provider": "house"}},
        "proxy.folding": "off",
    }
    with serve_proxy(
        tmp_path, upstream.url, settings, allow_anonymous=False, environment={"HOUSE_KEY": "sk-house"}
    ) as running:
        yield running


def add_user(served: RunningProxy, **rules: tuple[str, ...]) -> str:
    """Add the user ann with rules, and return a token of hers."""
    user = served.tokens.users.add_user("ann")
    served.tokens.users.change_user("ann", lambda each: replace(each, **rules))  # type: ignore[arg-type]
    return served.tokens.add("laptop", user_id=user.id)


def ask(
    served: RunningProxy, token: str, body: bytes | dict[str, object], path: str = "chat/completions"
) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-toolfold-token": token, "authorization": "Bearer sk-client"}
    return httpx2.post(f"{served.url}/v1/{path}", content=content, headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    ("allowed", "denied", "model", "is_accepted"),
    [
        ((), (), "gpt-4o", True),
        (("model:gpt-*",), (), "gpt-4o", True),
        (("model:gpt-*",), (), "GPT-4o", True),
        (("model:gpt-*",), (), "o1", False),
        ((), ("model:o1[preview]",), "o1[preview]", False),
        ((), ("model:o?",), "o1", True),
        (("model:*",), ("model:o1*",), "o1-mini", False),
        ((), ("model:*",), "gpt-4o", False),
        (("web",), (), "gpt-4o", True),
        ((), ("key:house",), "house-1", False),
        ((), ("key:*",), "house-1", False),
        ((), ("key:*",), "gpt-4o", True),
        (("key:openai",), (), "house-1", False),
        (("key:house", "model:house-*"), (), "house-1", True),
    ],
)
def test_model_request_is_accepted_only_if_access_rules_allow_both_model_and_provider_key(
    served: RunningProxy,
    upstream: Upstream,
    allowed: tuple[str, ...],
    denied: tuple[str, ...],
    model: str,
    is_accepted: bool,
) -> None:
    token = add_user(served, allowed=allowed, denied=denied)
    answer = ask(served, token, {"model": model, "messages": []})
    assert answer.status_code == (200 if is_accepted else 403)
    assert len(upstream.received) == is_accepted


def test_model_request_refused_by_a_team_rule_logs_the_rule_without_revealing_it_to_the_client(
    served: RunningProxy, caplog: pytest.LogCaptureFixture
) -> None:
    token = add_user(served)
    users = served.tokens.users
    users.add_team("red")
    users.change_team("red", lambda team: replace(team, denied=("model:o1*",)))
    users.join_team("red", "ann")
    with caplog.at_level("INFO", "toolfold"):
        answer = ask(served, token, {"model": "o1-mini", "messages": []})
    assert answer.status_code == 403
    assert "red" not in answer.text
    assert "Ask your administrator" in answer.json()["error"]["message"]
    assert "client laptop: the model 'o1-mini' is refused: team red denies model:o1*" in caplog.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", b'{"model": "o1", "messages": [], "model": "gpt-4o"}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "Model": "o1-pro"}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "models": ["o1-pro"]}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "fallbacks": ["o1-pro"]}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "fallback_models": ["o1-pro"]}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "model_id": "o1-pro"}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "preset": "o1-pro"}'),
        ("chat/completions", b'{"model": "gpt-4o", "messages": [], "extra_body": {"models": ["o1-pro"]}}'),
        ("chat/completions", b'{"model": "gpt-4o", "plugins": [{"id": "x", "allowed_models": ["o1-pro"]}]}'),
        ("responses", b'{"model": "gpt-4o", "tools": [{"type": "x", "fallback_models": ["o1-pro"]}]}'),
        ("chat/completions", b'{"messages": []}'),
        ("chat/completions", b"no json"),
        ("images/generations", b'{"model": "gpt-4o"}'),
        ("files", b"x"),
    ],
)
def test_request_must_name_exactly_one_model_if_its_user_is_limited_to_certain_models(
    served: RunningProxy, upstream: Upstream, path: str, body: bytes
) -> None:
    token = add_user(served, allowed=("model:gpt-*",))
    answer = ask(served, token, body, path)
    assert answer.status_code == 403
    assert "names none that can be read, or several" in answer.json()["error"]["message"]
    assert not upstream.received


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "o1-pro"}]}),
        ("responses", {"tools": [{"type": "image_generation", "model": "o1-pro"}]}),
        ("responses", {"tools": [{"type": "x", "Model": "o1-pro"}]}),
        ("responses", {"tools": [{"type": "x", "parameters": {"model": "o1-pro"}}]}),
        ("responses", {"tools": [{"type": "x", "model": {"name": "o1-pro"}}]}),
        ("responses", {"Tools": [{"type": "x", "model": "o1-pro"}]}),
        ("chat/completions", {"extra_body": {"model": "o1-pro"}}),
        ("chat/completions", {"model": "gpt-4o,o1-pro"}),
        ("chat/completions", {"model": "gpt-4o\n"}),
        ("chat/completions", {"model": "gpt-4o "}),
    ],
)
def test_request_with_a_second_or_malformed_model_name_is_refused_for_a_user_with_model_rules(
    served: RunningProxy, upstream: Upstream, path: str, body: dict[str, object]
) -> None:
    token = add_user(served)
    rules: list[dict[str, tuple[str, ...]]] = [
        {"allowed": ("model:gpt-4o*",), "denied": ()},
        {"allowed": (), "denied": ("model:o1*",)},
    ]
    for each in rules:
        served.tokens.users.change_user("ann", functools.partial(replace, **each))
        assert ask(served, token, {"model": "gpt-4o", **body}, path).status_code == 403
    assert not upstream.received


def test_model_named_in_a_tool_definition_is_accepted_if_access_rules_allow_the_model(
    served: RunningProxy, upstream: Upstream
) -> None:
    token = add_user(served, allowed=("model:gpt-*",))
    schema = {"type": "object", "properties": {"model": {"type": "string"}}}
    tools = [
        {"type": "image_generation", "model": "gpt-image-1"},
        {"type": "function", "name": "f", "parameters": schema},
    ]
    assert ask(served, token, {"model": "gpt-4o", "tools": tools}, "responses").status_code == 200
    assert upstream.received


def test_model_in_the_query_or_in_a_header_is_not_forwarded_for_a_user_with_model_rules(
    served: RunningProxy, upstream: Upstream
) -> None:
    headers = {
        "x-toolfold-token": add_user(served, allowed=("model:gpt-*",)),
        "authorization": "Bearer sk-client",
        "openai-organization": "org",
        "x-model": "o1",
        "x-portkey-config": '{"override_params": {"model": "o1"}}',
    }
    url = f"{served.url}/v1/chat/completions?model=o1&deployment=o1&beta=1"
    body = b'{"model": "gpt-4o", "messages": []}'
    assert httpx2.post(url, content=body, headers=headers, timeout=TIMEOUT_S).status_code == 200
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions?beta=1"
    assert received.header("authorization") == "Bearer sk-client"
    assert received.header("openai-organization") == "org"
    assert "o1" not in str(received.headers)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=UTF-8", 200),
        ("application/json; charset=utf-7", 403),
        ("application/x-www-form-urlencoded", 403),
        ("text/plain", 403),
    ],
)
def test_request_of_a_user_limited_to_certain_models_must_be_declared_as_utf_8_json(
    served: RunningProxy, kind: str, status: int
) -> None:
    headers = {"x-toolfold-token": add_user(served, allowed=("model:gpt-*",)), "content-type": kind}
    body, url = b'{"model": "gpt-4o", "messages": []}', f"{served.url}/v1/chat/completions"
    assert httpx2.post(url, content=body, headers=headers, timeout=TIMEOUT_S).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "models/gpt-4o", b"", 200),
        ("GET", "models/o1", b"", 403),
        ("GET", "responses/resp_1", b"", 403),
        ("GET", "files", b"", 403),
        ("GET", "models", b'{"model": "o1"}', 403),
        ("POST", "models/gpt-4o", b'{"model": "o1"}', 403),
        ("DELETE", "models/gpt-4o", b"", 403),
    ],
)
def test_user_limited_to_certain_models_can_read_only_information_about_these_models(
    served: RunningProxy, upstream: Upstream, method: str, path: str, body: bytes, status: int
) -> None:
    headers = {"x-toolfold-token": add_user(served, allowed=("model:gpt-*",))}
    url = f"{served.url}/v1/{path}"
    answer = httpx2.request(method, url, content=body, headers=headers, timeout=TIMEOUT_S)
    assert answer.status_code == status
    assert len(upstream.received) == (status == 200)


@pytest.mark.parametrize("rule", ["model: o3", "model:o3 ", "key: openai"])
def test_model_rule_with_a_space_is_rejected(served: RunningProxy, rule: str) -> None:
    with pytest.raises(ConfigError, match="is no rule"):
        add_user(served, denied=(rule,))


def test_user_limited_to_certain_models_can_still_request_the_model_list(served: RunningProxy) -> None:
    token = add_user(served, allowed=("model:gpt-*",))
    headers = {"x-toolfold-token": token}
    assert httpx2.get(f"{served.url}/v1/models", headers=headers, timeout=TIMEOUT_S).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["files", "files/1/content", "models"])
def test_user_who_may_not_use_a_providers_configured_key_cannot_read_data_with_the_key(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    upstream.received.clear()
    settings = {
        "providers.house": {"base_url": f"{upstream.url}/v1", "key_env": "HOUSE_KEY"},
        "proxy.upstreams": {"*": {"provider": "house"}},
    }
    with (
        serve_proxy(
            tmp_path, upstream.url, settings, allow_anonymous=False, environment={"HOUSE_KEY": "sk-house"}
        ) as served,
        caplog.at_level("INFO", "toolfold"),
    ):
        headers = {"x-toolfold-token": add_user(served, denied=("key:house",))}
        url = f"{served.url}/v1/{path}"
        assert httpx2.request(method, url, headers=headers, timeout=TIMEOUT_S).status_code == 403
        assert not upstream.received
        assert "the key of the provider 'house' is refused: user ann denies key:house" in caplog.text
        served.tokens.users.change_user("ann", lambda each: replace(each, denied=("key:other",)))
        url = f"{served.url}/v1/models"
        assert httpx2.get(url, headers=headers, timeout=TIMEOUT_S).status_code == 200


def test_user_can_use_only_explicitly_allowed_models_if_access_is_denied_by_default() -> None:
    directory = Directory({"1": User("1", "ann", allowed=("web",))}, denies_by_default=True)
    assert "gateway.default_access is deny" in directory.explain_model_refusal("1", "gpt-4o", "openai")
    team = Team("red", frozenset({"1"}), allowed=("model:gpt-*",))
    assert directory.with_team(team).explain_model_refusal("1", "gpt-4o", "openai") == ""


def test_unknown_model_counts_towards_the_cost_limit_at_a_multiple_of_the_highest_price(
    served: RunningProxy, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, users = add_user(served), served.tokens.users
    user = users.change_user("ann", lambda each: replace(each, limits={"cost_per_day": 0.01}))
    served.tokens.quotas = Quotas(SqliteQuotaStore(tmp_path / "quotas.db"), users.directory)
    upstream.prepared.append(
        Prepared([json.dumps(REPLY).encode()], headers={"content-type": "application/json"})
    )
    assert ask(served, token, {"model": "mystery-1", "messages": []}).status_code == 200
    wait_until(lambda: served.proxy.open_requests == 0)
    served.tokens.quotas.write_pending()
    ((_, used, _),) = served.tokens.quotas.describe(user_account(user.id), user.limits)
    assert used == pytest.approx(12 * (2.5 + 15.0) / 1000)  # gpt-5.4, the most expensive one of OpenAI
    assert ask(served, token, {"model": "mystery-1", "messages": []}).status_code == 429
    assert "the price of the model 'mystery-1' is unknown" in caplog.text
    assert "proxy.prices" in caplog.text


@pytest.mark.parametrize(
    ("provider", "expected"), [("openai", 17.5), ("anthropic", 6.25 + 25.0), ("ollama", 6.25 + 25.0)]
)
def test_model_without_a_listed_price_costs_a_multiple_of_the_highest_price_of_its_provider(
    provider: str, expected: float
) -> None:
    assert ModelPrices().charge(["mystery"], provider, MILLION) == pytest.approx(12 * expected)
    assert ModelPrices().find_cost("mystery", MILLION) is None


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-5.4", 17.5),
        ("openai/gpt-5.4-2026-03-05", 17.5),
        ("GPT-4o-mini-2024-07-18", 12.5),
        ("us.anthropic.claude-opus-4-8-v1:0", 30.0),
        ("claude-3-5-haiku-latest", 18.0),
        ("o1-pro-2025-03-19", 750.0),
        ("gpt-5.4-pro", 12 * 17.5),
        ("gpt-5.4-mini-pro", 12 * 17.5),
        ("o3-pro", 12 * 17.5),
        ("not-gpt-4o", 12 * 17.5),
        ("claude-opus-4-1", 12 * 17.5),
        ("gpt-4o" + "-1.1" * 50_000 + "x", 12 * 17.5),
    ],
    ids=lambda value: str(value)[:40],
)
def test_listed_price_applies_to_dated_or_smaller_variants_of_a_model_but_not_to_others(
    model: str, expected: float
) -> None:
    assert ModelPrices().charge([model], "openai", MILLION) == pytest.approx(expected)


def test_configured_model_price_overrides_listed_and_fallback_prices() -> None:
    prices = ModelPrices(
        {
            "local-*": PriceSettings(input=0, output=0),
            "gpt-4o": PriceSettings(input=1, output=2),
        }
    )
    assert prices.charge(["local-1"], "ollama", MILLION) == 0
    assert prices.find_cost("gpt-4o", MILLION) == pytest.approx(3)


def test_model_names_in_price_settings_ignore_case_and_have_only_the_wildcard_asterisk() -> None:
    prices = ModelPrices(
        {"local-[a]": PriceSettings(input=1, output=2), "Local-*": PriceSettings(input=3, output=4)}
    )
    assert prices.find_cost("local-[a]", MILLION) == pytest.approx(3)
    assert prices.find_cost("local-a", MILLION) == pytest.approx(7)
