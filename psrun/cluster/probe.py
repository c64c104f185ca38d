"""Probes servers: whether a port is open, whether a server answers, its incarnation, the address of this host.

`python -m psrun.cluster.probe PORT` reports as an exit code whether the server on a port of this
host answers, for probes of containers. TensorFlow's servers have no health service, and a stopped
process still accepts connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import psutil

T = TypeVar("T")
Peer = tuple[str, int]

# A method that no server has: a gRPC server that works answers that, at once. To wait until the channel is ready would
# take 0.2 s for each server: grpc.channel_ready_future polls.
_UNKNOWN_METHOD = "/psrun.Probe/Answer"
_ANSWERS_WITHIN_S = 10.0


def reachable(address: str, *, timeout_s: float) -> bool:
    """Whether something accepts connections at `address`, HOST:PORT. A stopped process still does."""
    try:
        _connect(address, timeout_s).close()
        return True
    except OSError:
        return False


class PortReservation:
    """Accepts connections at `address`, HOST:PORT, in this process until closed, so that probes of the port succeed.

    A port in use is not an error here; the server that needs it reports it.
    """

    def __init__(self, address: str) -> None:
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._socket = socket.create_server(("", int(address.rpartition(":")[2])))
            threading.Thread(target=self._serve, args=(self._socket,), name="psrun-door", daemon=True).start()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # unblocks accept
            self._socket.close()
            self._socket = None

    @staticmethod
    def _serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()


def answers(address: str, *, timeout_s: float) -> bool:
    """Whether the gRPC server at `address`, HOST:PORT, answers within `timeout_s`. A stopped process does not."""
    return bool(answering({address: address}, timeout_s=timeout_s))


def answering(servers: Mapping[T, str], *, timeout_s: float) -> set[T]:
    """The servers that answer, of `servers` with their addresses, HOST:PORT; probes all of them at once."""
    with contextlib.ExitStack() as channels:
        calls = {
            server: _call(channels.enter_context(_channel(address)), timeout_s) for server, address in servers.items()
        }
        return {server for server, call in calls.items() if _is_answered(call)}


@dataclass(frozen=True)
class ServerStatus:
    """The status of a server.

    Attributes:
      answers: whether its gRPC server answers.
      refused: whether its host is up but refuses the connection: the process has exited.
      incarnation: identifies the process among those started at this address; None if unknown.
    """

    answers: bool
    refused: bool = False
    incarnation: int | None = None


def statuses(
    servers: Mapping[T, str], *, timeout_s: float, incarnation: Callable[[grpc.Channel, float], int | None]
) -> dict[T, ServerStatus]:
    """The status of each of `servers` with their addresses; probes all of them at once.

    Args:
      timeout_s: for each of the three probes.
      incarnation: queries the incarnation of a server that answers, through a channel, within the given time.
    """
    if not servers:
        return {}
    with ThreadPoolExecutor(len(servers), thread_name_prefix="psrun-probe") as pool:
        found = pool.map(lambda address: _status(address, timeout_s, incarnation), servers.values())
        return dict(zip(servers, found, strict=True))


def _status(address: str, timeout_s: float, incarnation: Callable[[grpc.Channel, float], int | None]) -> ServerStatus:
    try:
        _connect(address, timeout_s).close()
    except ConnectionRefusedError:
        return ServerStatus(answers=False, refused=True)
    except OSError:
        return ServerStatus(answers=False)
    with _channel(address) as channel:
        if not _is_answered(_call(channel, timeout_s)):
            return ServerStatus(answers=False)
        return ServerStatus(answers=True, incarnation=incarnation(channel, timeout_s))


def _channel(address: str) -> grpc.Channel:
    """A separate connection: TensorFlow's connection to the same server may hang."""
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)])


def _call(channel: grpc.Channel, timeout_s: float) -> grpc.Future:
    """Begins to call a server. The call fails at once where nothing accepts connections."""
    return channel.unary_unary(_UNKNOWN_METHOD).future(b"", timeout=timeout_s)


def _is_answered(call: Any) -> bool:
    """Waits for the end of a call; whether the server answered."""
    return call.code() is grpc.StatusCode.UNIMPLEMENTED


def _connect(address: str, timeout_s: float) -> socket.socket:
    """Raises OSError if nothing accepts connections at `address`."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)


def peers(address: str) -> set[Peer]:
    """The addresses that `address`, HOST:PORT, resolves to now; empty if the name is unknown."""
    host, _, port = address.rpartition(":")
    try:
        entries = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(_plain(str(where[0])), int(where[1])) for *_, where in entries}


def sever(others: set[Peer]) -> None:
    """Closes this process's connections to `others`: calls that wait on them fail."""
    for connection in psutil.Process().net_connections("tcp"):
        if not connection.raddr or (_plain(connection.raddr.ip), connection.raddr.port) not in others:
            continue
        try:
            with socket.socket(fileno=os.dup(connection.fd)) as sock:
                ip, port = sock.getpeername()[:2]
                if (_plain(ip), port) in others:  # the descriptor may belong to another connection by now
                    sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it was closed concurrently


def _plain(ip: str) -> str:
    return ip.removeprefix("::ffff:")


def own_host(address: str) -> str:
    """The address by which the host at `address`, HOST:PORT, reaches this one. Sends nothing."""
    host, _, port = address.rpartition(":")
    family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(where)
        own_address = sock.getsockname()[0]
    return f"[{own_address}]" if ":" in own_address else own_address


if __name__ == "__main__":
    sys.exit(0 if answers(f"localhost:{sys.argv[1]}", timeout_s=_ANSWERS_WITHIN_S) else 1)
