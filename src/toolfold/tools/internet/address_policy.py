"""Policy for the network addresses that the web, browser and message tools may connect to.

A host name is resolved once, each of its addresses is checked, and the caller connects to one of the returned
addresses, never to the name: a name server that gives a different answer the second time (DNS rebinding)
changes nothing. An address is judged by the host that it reaches, in whatever notation it is written
(decimal, octal, IPv6 with an embedded IPv4 address).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from toolfold.core.errors import CallError, shorten

__all__ = ["AddressPolicy", "AddressRefused", "check_url", "parse_networks"]

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
LookUp = Callable[[str, int], Awaitable[list[IpAddress]]]

MAX_URL_CHARS = 8_192
MAX_ADDRESSES = 16
RESOLVE_TIMEOUT_S = 15.0
FIRST_UNPRIVILEGED_PORT = 1_024
_WEB_PORTS = frozenset({80, 443})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Networks for special purposes that some versions of Python regard as public.
_SPECIAL_NETWORKS = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "fec0::/10", "3fff::/20", "5f00::/16"),
    )
)
# They hand out credentials of the machine, so no setting allows them.
_METADATA_ADDRESSES = frozenset(
    map(
        ipaddress.ip_address,
        (
            *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16"),
            *("192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
        ),
    )
)


_SERVICE_NETWORKS = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16"),
    *("::1/128", "fc00::/7", "fe80::/10"),
)


class AddressRefused(CallError):
    """Raised when the address policy forbids a URL or network address."""


class AddressPolicy:
    """Policy that allows connections to public addresses, and to private addresses in given networks."""

    def __init__(self, private_networks: Iterable[IpNetwork] = (), *, look_up: LookUp | None = None) -> None:
        """Create a policy; `look_up` resolves host names to addresses, by default as the system does."""
        self._private_networks = tuple(private_networks)
        self._look_up = look_up or _look_up

    @classmethod
    def allowing(cls, private_networks: Iterable[str]) -> AddressPolicy:
        """Create a policy that allows networks in CIDR notation. Raises ValueError if one is invalid."""
        return cls(parse_networks(private_networks))

    @classmethod
    def for_service(cls) -> AddressPolicy:
        """Create a policy for a service whose URL the user has configured: it may be in a private network."""
        return cls.allowing(_SERVICE_NETWORKS)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return all addresses of a host. Raises AddressRefused if the port or any address is forbidden.

        One forbidden address is enough to refuse the host: a name that has both public and private addresses
        is most likely an attack.
        """
        if not _is_usable_port(port):
            raise AddressRefused(
                f"Port {port} may not be used: it belongs to a service other than the web. Use 80, 443 or a"
                f" port from {FIRST_UNPRIVILEGED_PORT} on."
            )
        addresses = await self._look_up(host, port)
        for address in addresses:
            self._require_allowed(host, address)
        return [str(address) for address in addresses]

    def allows(self, address: IpAddress) -> bool:
        """Return True if the policy allows connections to this network address."""
        meant = _embedded_address(address)
        if meant in _METADATA_ADDRESSES:
            return False
        return _is_public(meant) or any(
            meant.version == network.version and meant in network for network in self._private_networks
        )

    def _require_allowed(self, host: str, address: IpAddress) -> None:
        if self.allows(address):
            return
        if _embedded_address(address) in _METADATA_ADDRESSES:
            raise AddressRefused(
                f"{shorten(host)!r} is refused: it is the metadata service of a cloud provider."
            )
        raise AddressRefused(
            f"{shorten(host)!r} has the address {address}, which is not on the public internet. The user can"
            " allow a private network in the setting web.private_networks."
        )


def check_url(url: str) -> str:
    """Return the URL unchanged if it is an HTTP(S) URL without credentials. Raises AddressRefused if not."""
    if len(url) > MAX_URL_CHARS:
        raise AddressRefused(f"The URL has {len(url):,} characters; at most {MAX_URL_CHARS:,} are accepted.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(f"{shorten(url)!r} is not a valid URL: {error}.") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise AddressRefused(
            f"{shorten(url)!r} cannot be opened: only URLs that start with http:// or https:// are accepted."
        )
    if "@" in parts.netloc:
        raise AddressRefused(
            "URLs with a user name or password are not accepted. Remove the user name and the password."
        )
    has_control = any(character.isspace() or not character.isprintable() for character in url)
    if not parts.hostname or has_control or "\\" in url or port == 0:
        raise AddressRefused(f"{shorten(url)!r} is not a valid URL.")
    return url


def parse_networks(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Parse networks in CIDR notation. Raises ValueError if one is invalid."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


async def _look_up(host: str, port: int) -> list[IpAddress]:
    """Return the addresses of a host, given as a name or as an address in any system-supported notation."""
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found]
    except TimeoutError:
        raise AddressRefused(f"The name server did not answer for {shorten(host)!r} in time.") from None
    except (OSError, ValueError):  # unknown, or no valid name
        raise AddressRefused(f"There is no host {shorten(host)!r}, or it has no address.") from None
    if not addresses:
        raise AddressRefused(f"There is no host {shorten(host)!r}, or it has no address.")
    return list(dict.fromkeys(addresses))[:MAX_ADDRESSES]


def _embedded_address(address: IpAddress) -> IpAddress:
    """Return the IPv4 address embedded in an IPv6 address (NAT64, 6to4, mapped), or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: IpAddress) -> bool:
    if any(address.version == network.version and address in network for network in _SPECIAL_NETWORKS):
        return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    )


def _is_usable_port(port: int) -> bool:
    return port in _WEB_PORTS or port >= FIRST_UNPRIVILEGED_PORT
