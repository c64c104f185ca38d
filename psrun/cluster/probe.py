"""Whether somebody listens, and how this host is reached."""

from __future__ import annotations

import socket


def reachable(address: str, *, timeout_s: float) -> bool:
    """Whether something accepts connections at `address`, HOST:PORT. A stopped process still does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return True
    except OSError:
        return False


def own_host(address: str) -> str:
    """The address by which the host at `address`, HOST:PORT, reaches this one. Sends nothing."""
    host, _, port = address.rpartition(":")
    family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(where)
        found = sock.getsockname()[0]
    return f"[{found}]" if ":" in found else found
