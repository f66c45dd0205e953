"""The address policy: which URLs and network addresses the web tools may use."""

from __future__ import annotations

import ipaddress

import pytest

from tests.cases import check_cases
from toolfold.tools.internet.address_policy import AddressPolicy, AddressRefused, check_url, parse_networks


@check_cases(
    "address",
    [
        "127.0.0.1",
        "127.255.0.9",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.1.1",
        "100.64.0.1",
        "198.18.0.1",
        "192.0.2.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:db8::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "192.0.0.9",
        "192.0.0.192",
        "192.88.99.1",
        "fec0::1",
        "3fff::1",
        "5f00::1",
        "fd20:ce::254",
    ],
)
def test_non_public_ip_address_is_refused(address: str) -> None:
    assert not AddressPolicy().allows(ipaddress.ip_address(address))


@check_cases("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_ip_address_is_allowed(address: str) -> None:
    assert AddressPolicy().allows(ipaddress.ip_address(address))


def test_addresses_in_an_allowed_private_network_are_accepted() -> None:
    policy = AddressPolicy(parse_networks(["192.168.1.0/24", "fd00::/8"]))
    assert policy.allows(ipaddress.ip_address("192.168.1.77"))
    assert policy.allows(ipaddress.ip_address("::ffff:192.168.1.77"))
    assert policy.allows(ipaddress.ip_address("fd12::1"))
    assert not policy.allows(ipaddress.ip_address("192.168.2.1"))
    assert not policy.allows(ipaddress.ip_address("127.0.0.1"))


def test_cloud_metadata_address_is_refused_even_if_it_is_in_an_allowed_network() -> None:
    policy = AddressPolicy(parse_networks(["0.0.0.0/0", "::/0"]))
    assert policy.allows(ipaddress.ip_address("169.254.1.1"))
    assert not policy.allows(ipaddress.ip_address("169.254.169.254"))
    for address in ("fd00:ec2::254", "192.0.0.192", "fd20:ce::254"):
        assert not policy.allows(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "0", "::1"],
)
async def test_loopback_host_is_refused_in_decimal_hexadecimal_octal_and_short_notation(host: str) -> None:
    with pytest.raises(AddressRefused):
        await AddressPolicy().resolve(host, 80)


async def test_host_that_resolves_to_a_public_and_a_private_address_is_refused() -> None:
    async def look_up(_host: str, _port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        return [ipaddress.ip_address("1.1.1.1"), ipaddress.ip_address("10.0.0.1")]

    with pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
        await AddressPolicy(look_up=look_up).resolve("both.example", 443)


@pytest.mark.parametrize("port", [22, 25, 110, 445])
async def test_connection_to_a_port_below_1024_other_than_80_and_443_is_refused(port: int) -> None:
    with pytest.raises(AddressRefused, match=f"Port {port}"):
        await AddressPolicy().resolve("1.1.1.1", port)


async def test_resolving_a_nonexistent_host_raises_an_error_that_contains_its_name() -> None:
    with pytest.raises(AddressRefused, match=r"no host 'nowhere\.invalid'"):
        await AddressPolicy().resolve("nowhere.invalid", 80)


@check_cases(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/a",
        "javascript:alert(1)",
        "data:text/html,hello",
        "gopher://127.0.0.1:70/",
        "view-source:http://example.com/",
        "//example.com/",
        "http://",
        "http:///path",
        "http://user:word@example.com/",
        "http://user@example.com/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://exam ple.com/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com/\r\nHost: x",
        "http://[::1/",
        "http://example.com/" + "a" * 9_000,
    ],
)
def test_url_that_is_invalid_or_has_another_scheme_or_contains_credentials_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        check_url(url)


def test_http_and_https_urls_are_accepted() -> None:
    for url in ("http://example.com", "HTTPS://Example.com:8443/a?b=c#d", "https://münchen.example/straße"):
        assert check_url(url) == url
