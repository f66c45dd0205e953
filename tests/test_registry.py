"""The registry: registration of tools, warnings about name collisions, and immutable snapshots."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import try_examples
from tests.timing import cost_ratio
from toolfold.core.authoring import build_tool
from toolfold.core.authoring import tool as make_tool
from toolfold.core.errors import InvalidTool, NameTaken, RegistryError, ReservedName
from toolfold.core.naming import short_names
from toolfold.core.registry import Registry, Snapshot
from toolfold.core.types import Source, Tool


@pytest.fixture
def registry() -> Registry:
    return Registry()


def tool(name: str, toolset: str = "web", **options: Any) -> Tool:
    # Not a built-in function: reading the signature of one can fail in threads of CPython 3.11.
    return build_tool(name=name, toolset=toolset, schema={}, handler=lambda args: None, **options)


def names(registry: Registry) -> set[str]:
    return set(registry.snapshot())


HANG_S = 240.0  # switching threads all the time is slow on a busy machine


def run_concurrently(*works: Callable[[], object]) -> None:
    """Run the functions in threads and raise what any of them raised."""
    problems: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(HANG_S)
            work()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if problems:
        raise problems[0]


# Registering


def test_tool_is_registered_from_name_schema_and_handler(registry: Registry) -> None:
    registered = registry.register(
        name="search",
        toolset="web",
        schema={"description": "Find.", "parameters": {"type": "object", "properties": {"q": {}}}},
        handler=lambda args: args["q"],
        check_fn=lambda: True,
        requires_env=["KEY"],
        is_async=False,
        description="Find pages.",
        emoji="🔎",
        synonyms=["look up"],
    )
    assert registry.snapshot()["search"] is registered
    assert (registered.description, registered.emoji) == ("Find pages.", "🔎")
    assert (registered.requires_env, registered.synonyms) == (("KEY",), ("look up",))


def test_tool_object_passed_to_add_is_registered(registry: Registry) -> None:
    brought = tool("create_issue", "mcp-github", source=Source("mcp", "github"))
    assert registry.add(brought) is brought
    assert registry.snapshot()["create_issue"] is brought


def test_function_decorated_as_a_tool_is_registered(registry: Registry) -> None:
    @make_tool(toolset="math")
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert registry.add(double) is double.tool
    assert registry.snapshot().toolsets == {"math": {"double"}}


@pytest.mark.parametrize("stranger", [None, "search", {"name": "search"}, len])
def test_registering_an_object_that_is_not_a_tool_is_rejected(registry: Registry, stranger: Any) -> None:
    with pytest.raises(InvalidTool, match="expected a Tool or a @tool function"):
        registry.add(stranger)
    assert names(registry) == set()


def test_invalid_tool_is_not_registered(registry: Registry) -> None:
    before = registry.snapshot()
    with pytest.raises(InvalidTool):
        registry.register(name="x", toolset="web", schema={"parameters": []}, handler=len)
    assert registry.snapshot() is before


@pytest.mark.parametrize(
    "route",
    [
        lambda registry, value: registry.add(value),
        lambda registry, value: registry.add_all([tool("fine"), value]),
        lambda registry, value: registry.replace_toolset("web", [tool("fine"), value]),
        lambda registry, value: registry.register(name=value.name, toolset="web", schema={}, handler=len),
        lambda registry, value: registry.add(make_tool(name=value.name)(lambda: None)),
        lambda registry, value: registry.add(value, override=True),
    ],
    ids=["add", "add_all", "replace_toolset", "register", "decorator", "override"],
)
@pytest.mark.parametrize("name", ["tool_search", "tool_describe", "tool_call"])
def test_reserved_tool_name_is_rejected_by_every_registration_method(
    registry: Registry, route: Callable[[Registry, Tool], object], name: str
) -> None:
    before = registry.snapshot()
    with pytest.raises(ReservedName):
        route(registry, tool(name))
    assert registry.snapshot() is before


# Collisions


def test_tool_with_the_name_of_a_tool_in_another_toolset_replaces_that_tool_with_a_warning(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.add(tool("search", "web"))
    late = registry.add(tool("search", "mcp-brave", source=Source("mcp", "brave")))
    assert registry.snapshot()["search"] is late
    assert registry.snapshot().toolsets == {"mcp-brave": {"search"}}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "tool 'search' of toolset 'mcp-brave' (mcp brave) replaces the tool"
        " of the same name of toolset 'web' (user)"
    )


def test_registering_a_used_name_with_override_false_raises_an_error_and_keeps_the_earlier_tool(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = registry.add(tool("search", "web"))
    before = registry.snapshot()
    with pytest.raises(NameTaken, match="'search' is already registered by toolset 'web'"):
        registry.register(name="search", toolset="other", schema={}, handler=len, override=False)
    assert registry.snapshot() is before
    assert before["search"] is first
    assert caplog.records == []


@pytest.mark.parametrize("override", [True, False])
def test_tool_registered_again_in_the_same_toolset_replaces_the_old_tool_without_a_warning(
    registry: Registry, caplog: pytest.LogCaptureFixture, override: bool
) -> None:
    registry.add(tool("search"))
    new = registry.add(tool("search"), override=override)
    assert registry.snapshot()["search"] is new
    assert caplog.records == []


def test_second_tool_with_the_same_original_name_replaces_the_first_with_a_warning(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = registry.add(tool("search.pages", "web"))
    late = registry.add(tool("search.pages", "other"))
    assert late.name == first.name
    assert registry.snapshot().find("search.pages") is late
    assert len(caplog.records) == 1


def test_tool_named_like_the_short_name_of_another_tool_replaces_that_tool_only_with_override(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    odd = registry.add(tool("search.pages"))
    with pytest.raises(NameTaken):
        registry.add(tool(next(short_names("search.pages"))), override=False)
    assert registry.snapshot().find("search.pages") is odd
    registry.add(tool(odd.name))
    assert len(caplog.records) == 1


def test_tool_names_are_case_sensitive(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    registry.add_all([tool("search", "a"), tool("Search", "b")])
    assert names(registry) == {"search", "Search"}
    assert caplog.records == []


# Many at once


def test_add_all_registers_several_tools_as_one_change_of_the_registry(registry: Registry) -> None:
    added = registry.add_all(tool(name) for name in ("a", "b.c", "d"))
    assert [each.original_name or each.name for each in added] == ["a", "b.c", "d"]
    assert set(registry.snapshot().values()) == set(added)
    assert registry.snapshot().generation == 1


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda: tool("tool_call"), ReservedName),
        (lambda: tool("taken"), NameTaken),
        (lambda: "nothing", InvalidTool),
    ],
)
def test_add_all_registers_no_tools_if_one_of_the_tools_is_rejected(
    registry: Registry,
    caplog: pytest.LogCaptureFixture,
    bad: Callable[[], Any],
    error: type[RegistryError],
) -> None:
    registry.add(tool("taken", "other"))
    before = registry.snapshot()
    with pytest.raises(error):
        registry.add_all([tool("a"), tool("b"), bad(), tool("c")], override=False)
    assert registry.snapshot() is before
    assert caplog.records == []


def test_rejected_add_all_keeps_the_earlier_tool_and_logs_no_replacement(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = registry.add(tool("search", "web"))
    with pytest.raises(ReservedName):
        registry.add_all([tool("search", "other"), tool("tool_call")])
    assert registry.snapshot()["search"] is first
    assert caplog.records == []


def test_add_all_registers_no_tools_if_the_tool_iterator_raises(registry: Registry) -> None:
    def source() -> Iterator[Tool]:
        yield tool("a")
        raise KeyboardInterrupt

    before = registry.snapshot()
    with pytest.raises(KeyboardInterrupt):
        registry.add_all(source())
    assert registry.snapshot() is before


def test_tools_passed_to_add_all_are_not_registered_before_the_iterator_is_exhausted(
    registry: Registry,
) -> None:
    def source() -> Iterator[Tool]:
        yield tool("a")
        assert "a" not in registry.snapshot()
        yield tool("tool_call")

    with pytest.raises(ReservedName):
        registry.add_all(source())
    assert names(registry) == set()


def test_another_thread_can_register_tools_while_add_all_waits_for_its_iterator(registry: Registry) -> None:
    source_is_open, other_is_done = threading.Event(), threading.Event()

    def source() -> Iterator[Tool]:
        yield tool("a")
        source_is_open.set()
        assert other_is_done.wait(60), "the registry was locked"
        yield tool("b")

    def other() -> None:
        assert source_is_open.wait(60)
        registry.add(tool("c"))
        other_is_done.set()

    run_concurrently(lambda: registry.add_all(source()), other)
    assert names(registry) == {"a", "b", "c"}


def test_add_all_with_no_tools_does_not_change_the_registry(registry: Registry) -> None:
    before = registry.snapshot()
    assert registry.add_all([]) == []
    assert registry.snapshot() is before


def test_replace_toolset_exchanges_all_tools_of_a_toolset_as_one_change_of_the_registry(
    registry: Registry,
) -> None:
    registry.add_all([tool("old"), tool("both"), tool("else", "file")])
    before = registry.snapshot()
    registry.replace_toolset("web", [tool("both"), tool("new")])
    assert names(registry) == {"both", "new", "else"}
    assert registry.snapshot().generation == before.generation + 1
    assert set(before) == {"old", "both", "else"}


def test_tools_of_a_toolset_are_unchanged_if_replace_toolset_is_rejected(registry: Registry) -> None:
    registry.add_all([tool("old"), tool("else", "file")])
    before = registry.snapshot()
    with pytest.raises(ReservedName):
        registry.replace_toolset("web", [tool("new"), tool("tool_search")])
    assert registry.snapshot() is before


def test_replace_toolset_with_no_tools_removes_the_toolset(registry: Registry) -> None:
    registry.add_all([tool("old"), tool("else", "file")])
    registry.replace_toolset("web", [])
    assert names(registry) == {"else"}


# Removing


def test_removed_tool_is_no_longer_found_in_the_registry(registry: Registry) -> None:
    registry.add(tool("a"))
    assert registry.remove("a") is True
    assert registry.snapshot().find("a") is None


@pytest.mark.parametrize("by", ["original", "short form"])
def test_tool_can_be_removed_by_its_short_name_or_its_original_name(registry: Registry, by: str) -> None:
    odd = registry.add(tool("a.b"))
    assert registry.remove("a.b" if by == "original" else odd.name)
    assert names(registry) == set()


def test_removing_an_unknown_tool_changes_nothing(registry: Registry) -> None:
    registry.add(tool("a"))
    before = registry.snapshot()
    assert registry.remove("b") is False
    assert registry.remove("b.c") is False
    assert registry.remove("") is False
    assert registry.snapshot() is before


# Snapshots


def test_snapshot_taken_before_tools_are_added_or_removed_does_not_change(registry: Registry) -> None:
    kept = registry.add(tool("a"))
    old = registry.snapshot()
    registry.add(tool("a"))
    registry.add(tool("b"))
    registry.remove("a")
    assert dict(old) == {"a": kept}
    assert old.toolsets == {"web": {"a"}}
    assert old.find("b") is None


def test_snapshot_of_the_registry_is_read_only(registry: Registry) -> None:
    registry.add(tool("a"))
    snapshot: Any = registry.snapshot()
    attempts: list[Callable[[], object]] = [
        lambda: snapshot.__setitem__("a", tool("b")),
        lambda: snapshot.update(b=tool("b")),
        lambda: snapshot.pop("a"),
        lambda: setattr(snapshot, "generation", 99),
        lambda: snapshot.toolsets.__setitem__("web", frozenset()),
        lambda: snapshot.toolsets["web"].add("b"),
        lambda: snapshot.ordered.append(tool("b")),
        lambda: snapshot.agent_level.add("a"),
    ]
    for attempt in attempts:
        with pytest.raises((TypeError, AttributeError)):
            attempt()
    assert (list(snapshot), snapshot.generation) == (["a"], 1)


def test_registry_returns_the_same_snapshot_object_until_a_tool_is_added(registry: Registry) -> None:
    registry.add(tool("a"))
    first = registry.snapshot()
    assert registry.snapshot() is first
    registry.add(tool("b"))
    assert registry.snapshot() is not first


def test_listener_is_called_after_every_change_of_the_tools_and_not_otherwise(registry: Registry) -> None:
    seen: list[set[str]] = []
    registry.on_change(lambda: seen.append(names(registry)))
    registry.add(tool("a"))
    registry.add_all([tool("b"), tool("c")])
    assert registry.remove("a")
    assert not registry.remove("a")
    with pytest.raises(ReservedName):
        registry.add(tool("tool_search"))
    kept = registry.replace_toolset("web", [tool("b")])
    registry.replace_toolset("web", kept)
    assert seen == [{"a"}, {"a", "b", "c"}, {"b", "c"}, {"b"}]


def test_generation_number_increases_with_every_change_of_the_registry(registry: Registry) -> None:
    changes: list[Callable[[], object]] = [
        lambda: registry.add(tool("a")),
        lambda: registry.add(tool("a")),
        lambda: registry.register(name="b", toolset="web", schema={}, handler=len),
        lambda: registry.add_all([tool("c"), tool("d")]),
        lambda: registry.remove("a"),
        lambda: registry.replace_toolset("web", [tool("e")]),
        lambda: registry.replace_toolset("web", []),
    ]
    seen = [registry.snapshot().generation]
    for change in changes:
        change()
        seen.append(registry.snapshot().generation)
    assert seen == sorted(set(seen))


@try_examples(50)
@given(st.permutations(["b", "a", "C", "a.b", "z_", "_z", "10", "9"]))
def test_snapshot_sorts_tools_by_name_regardless_of_registration_order(arrivals: list[str]) -> None:
    registry = Registry()
    for name in arrivals:
        registry.add(tool(name))
    ordered = [each.name for each in registry.snapshot().ordered]
    assert ordered == sorted(registry.snapshot())


def test_lookup_prefers_the_registered_name_of_a_tool_over_the_original_name_of_another(
    registry: Registry,
) -> None:
    impostor = registry.add(replace(tool("other"), original_name="search"))
    assert registry.snapshot().find("search") is impostor
    real = registry.add(tool("search"))
    assert registry.snapshot().find("search") is real


def test_registry_snapshot_returns_all_tools_that_have_a_given_short_or_original_name(
    registry: Registry,
) -> None:
    first = registry.add(replace(tool("first"), original_name="search"))
    second = registry.add(replace(tool("second"), original_name="search"))
    assert list(registry.snapshot().named("search")) == [first, second]
    real = registry.add(tool("search"))
    assert list(registry.snapshot().named("search")) == [real, first, second]
    assert list(registry.snapshot().named("first")) == [first]
    assert list(registry.snapshot().named("nobody")) == []


def test_unknown_tool_name_is_not_found_in_the_registry(registry: Registry) -> None:
    registry.add(tool("a"))
    snapshot = registry.snapshot()
    assert snapshot.find("b") is None
    assert snapshot.find("") is None
    with pytest.raises(KeyError):
        snapshot["b"]


def test_registry_snapshot_contains_the_tools_of_each_toolset_and_the_agent_level_tools(
    registry: Registry,
) -> None:
    registry.add_all(
        [tool("a"), tool("b", "file"), tool("c", "file"), tool("todo", "todo", agent_level=True)]
    )
    snapshot = registry.snapshot()
    assert snapshot.toolsets == {"web": {"a"}, "file": {"b", "c"}, "todo": {"todo"}}
    assert snapshot.agent_level == {"todo"}


# Size


def fill_registry(size: int) -> Registry:
    registry = Registry()
    for number in range(size):
        registry.register(
            name=f"tool_{number}",
            toolset=f"set_{number % 50}",
            schema={"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
            handler=lambda args: args,
        )
    return registry


@pytest.fixture(scope="module")
def small() -> Registry:
    return fill_registry(100)


@pytest.fixture(scope="module")
def large() -> Registry:
    return fill_registry(10_000)


def test_ten_thousand_tools_can_be_registered(large: Registry) -> None:
    assert set(large.snapshot()) == {f"tool_{number}" for number in range(10_000)}


@pytest.mark.thorough
def test_time_to_register_tools_grows_linearly_with_their_number() -> None:
    grown = cost_ratio(lambda: fill_registry(500), lambda: fill_registry(4_000))
    assert grown < 24  # 8 if linear, 64 if quadratic


@pytest.mark.parametrize(
    "look_up",
    [
        lambda registry: registry.snapshot()["tool_50"],
        lambda registry: registry.snapshot().find("tool_50"),
        lambda registry: registry.snapshot().find("missing.one"),
        lambda registry: registry.snapshot().toolsets["set_1"],
        lambda registry: registry.snapshot().ordered,
        lambda registry: registry.snapshot().agent_level,
    ],
    ids=["item", "find", "find nothing", "toolset", "ordered", "agent level"],
)
def test_time_to_look_up_a_tool_does_not_grow_with_the_number_of_tools(
    small: Registry, large: Registry, look_up: Callable[[Registry], object]
) -> None:
    def many(registry: Registry) -> Callable[[], None]:
        def work() -> None:
            for _ in range(500):
                look_up(registry)

        work()  # cached by the snapshot
        return work

    grown = cost_ratio(many(small), many(large))
    assert grown < 10  # 1 if constant, 100 if linear


def test_snapshot_object_of_an_unchanged_large_registry_is_reused(large: Registry) -> None:
    assert len({id(large.snapshot()) for _ in range(10_000)}) == 1


# Threads


@pytest.fixture
def fast_thread_switching() -> Iterator[None]:
    """Switch threads as often as possible, so that race conditions show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_tools_registered_by_several_threads_at_the_same_time_are_all_in_the_registry(
    registry: Registry, fast_thread_switching: None
) -> None:
    seen: list[Snapshot] = []
    threads, each = 8, 50

    def register(worker: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(each):
                registry.register(name=f"t{worker}_{number}", toolset=f"w{worker}", schema={}, handler=names)

        return work

    def read() -> None:
        while not seen or len(seen[-1]) < threads * each:
            seen.append(registry.snapshot())
            time.sleep(0.0005)  # a reader that never waits stops the writers on a busy machine

    run_concurrently(read, *(register(worker) for worker in range(threads)))
    assert names(registry) == {f"t{worker}_{number}" for worker in range(threads) for number in range(each)}
    # One tool per generation: an inconsistent snapshot would have the wrong number.
    assert all(len(snapshot) == snapshot.generation for snapshot in seen)
    generations = [snapshot.generation for snapshot in seen]
    assert generations == sorted(generations)


@pytest.mark.thorough
def test_concurrent_snapshots_contain_either_all_or_none_of_the_tools_of_an_add_all_call(
    registry: Registry,
) -> None:
    sizes: set[int] = set()
    done = threading.Event()

    def add() -> None:
        try:
            for batch in range(60):
                registry.add_all(tool(f"b{batch}_{number}", f"batch{batch}") for number in range(20))
        finally:
            done.set()

    def exchange() -> None:
        for _ in range(60):
            registry.replace_toolset("flip", [tool(f"f{number}", "flip") for number in range(20)])
            registry.replace_toolset("flip", [])

    def read() -> None:
        last = False
        while not last:
            last = done.is_set()
            sizes.update(len(members) for members in registry.snapshot().toolsets.values())

    run_concurrently(read, add, exchange)
    assert sizes == {20}
    assert len(names(registry)) == 1_200


def test_only_one_of_several_concurrent_registrations_of_a_name_with_override_false_succeeds(
    registry: Registry, fast_thread_switching: None
) -> None:
    winners: list[tuple[str, str]] = []
    wanted = [f"tool_{number}" for number in range(300)]

    def want(toolset: str) -> Callable[[], None]:
        def work() -> None:
            for name in wanted:
                with contextlib.suppress(NameTaken):
                    registry.add(tool(name, toolset), override=False)
                    winners.append((name, toolset))

        return work

    run_concurrently(*(want(f"set{number}") for number in range(6)))
    assert sorted(winners) == sorted((each.name, each.toolset) for each in registry.snapshot().values())
    assert registry.snapshot().generation == len(wanted)
