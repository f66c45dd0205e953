"""Prefixes of resource URIs and prompt names can be resolved to their server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolfold.serving.gateway.server_prefixes import ServerPrefixes

names = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,12}[A-Za-z0-9])?", fullmatch=True)


def prefixes_for(servers: list[str]) -> ServerPrefixes:
    return ServerPrefixes({server: f"{server}_" for server in servers})


def test_resource_uri_sent_to_clients_starts_with_the_server_name_and_a_plus_sign() -> None:
    assert prefixes_for(["files"]).prefix_uri("files", "file:///a") == "files+file:///a"


def test_resource_uris_and_prompt_names_of_a_server_with_an_empty_prefix_are_unchanged() -> None:
    addresses = ServerPrefixes({"files": ""})
    assert addresses.prefix_uri("files", "file:///a") == "file:///a"
    assert addresses.prefix_prompt("files", "greet") == "greet"


def test_prompt_name_that_matches_two_server_prefixes_is_tried_with_the_longer_prefix_first() -> None:
    addresses = prefixes_for(["a", "a_b"])
    assert addresses.resolve_prompt("a_b_c") == [("a_b", "c"), ("a", "b_c")]


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.text(min_size=1, max_size=40))
def test_every_prefixed_resource_uri_and_prompt_name_resolves_to_its_server(
    servers: list[str], own: str
) -> None:
    addresses = prefixes_for(servers)
    for server in servers:
        assert (server, own) in addresses.resolve_uri(addresses.prefix_uri(server, own))
        assert (server, own) in addresses.resolve_prompt(addresses.prefix_prompt(server, own))


@given(st.lists(names, min_size=2, max_size=6, unique=True))
def test_every_server_has_a_unique_and_valid_uri_scheme_for_its_resources(servers: list[str]) -> None:
    addresses = prefixes_for(servers)
    schemes = {addresses.prefix_uri(server, "") for server in servers}
    assert len(schemes) == len(servers)
    assert all(scheme[:1].isalpha() and scheme.isascii() for scheme in schemes)
