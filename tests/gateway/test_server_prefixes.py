"""An address or a prompt's name says whose it is, and can be undone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolfold.gateway.server_prefixes import ServerPrefixes

names = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,12}[A-Za-z0-9])?", fullmatch=True)


def named(servers: list[str]) -> ServerPrefixes:
    return ServerPrefixes({server: f"{server}_" for server in servers})


def test_a_resource_has_its_servers_name_before_its_scheme() -> None:
    assert named(["files"]).prefix_uri("files", "file:///a") == "files+file:///a"


def test_a_server_without_a_prefix_keeps_its_own_addresses() -> None:
    addresses = ServerPrefixes({"files": ""})
    assert addresses.prefix_uri("files", "file:///a") == "file:///a"
    assert addresses.prefix_prompt("files", "greet") == "greet"


def test_the_longest_name_that_fits_comes_first() -> None:
    addresses = named(["a", "a_b"])
    assert addresses.resolve_prompt("a_b_c") == [("a_b", "c"), ("a", "b_c")]


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.text(min_size=1, max_size=40))
def test_what_was_done_can_be_undone(servers: list[str], own: str) -> None:
    addresses = named(servers)
    for server in servers:
        assert (server, own) in addresses.resolve_uri(addresses.prefix_uri(server, own))
        assert (server, own) in addresses.resolve_prompt(addresses.prefix_prompt(server, own))


@given(st.lists(names, min_size=2, max_size=6, unique=True))
def test_no_two_servers_have_one_scheme(servers: list[str]) -> None:
    addresses = named(servers)
    schemes = {addresses.prefix_uri(server, "") for server in servers}
    assert len(schemes) == len(servers)
    assert all(scheme[:1].isalpha() and scheme.isascii() for scheme in schemes)
