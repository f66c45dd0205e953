"""Open the gateway's listening socket before slow imports, with the standard library only."""

from __future__ import annotations

import contextlib
import socket

PEER_TIMEOUT_S = 90
"""Time after which a connection is closed whose peer is unreachable or reads nothing."""
KEEPALIVE_INTERVAL_S = 15
MAX_PENDING_CONNECTIONS = 128


def listen_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raises OSError, or UnicodeError for an invalid host."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, small responses are delayed.
    listening = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        detect_vanished_peers(listening)
        listening.bind(address)
        listening.listen(MAX_PENDING_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening


def detect_vanished_peers(listening: socket.socket) -> None:
    """Enable TCP keepalive on a listening socket, so that connections of unreachable clients are closed.

    Accepted sockets inherit the options.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = max(1, PEER_TIMEOUT_S // KEEPALIVE_INTERVAL_S - 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", probes),
        ("TCP_USER_TIMEOUT", PEER_TIMEOUT_S * 1_000),
    ):
        with contextlib.suppress(OSError, AttributeError):  # not every system has all of them
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
