"""A private network for the servers of one machine.

TensorFlow's servers listen on all interfaces without authentication. In a private network namespace, which has only
a loopback interface, no other process reaches them. Linux only; see namespaces(7) and netdevice(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_FLAGS = "16sH22x"


def isolate() -> str | None:
    """Moves this process, and all its later children, into a new network namespace with a loopback interface.

    Call before starting threads: only the calling thread moves, and for users other than root there may be no other.

    Returns:
      None, or the reason why it was not possible; then nothing has changed.
    """
    uid = os.geteuid()
    gid = os.getegid()
    try:
        if uid == 0:
            _unshare(_CLONE_NEWNET)
        else:
            # Users other than root need a user namespace in which they are root; it maps to their identity outside.
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
        _bring_up("lo")
    except (OSError, AttributeError) as error:
        return str(error)
    return None


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = interface.encode()
        _, flags = struct.unpack(_IFREQ_FLAGS, fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack(_IFREQ_FLAGS, name, 0)))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack(_IFREQ_FLAGS, name, flags | _IFF_UP))
