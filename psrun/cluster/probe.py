"""Whether somebody listens."""

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
