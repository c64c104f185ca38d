#!/usr/bin/env bash
# Python 3.11.7: socket.send_fds(sock, buffers, fds, flags, address) takes `flags` and `address` and ignores them: it calls
# sendmsg without them. Seen: with MSG_DONTWAIT on a socket whose buffer is full, sendmsg raises BlockingIOError at once,
# and send_fds waits as long as the socket lets it, here one second (SO_SNDTIMEO). The documentation refers to sendmsg for
# these parameters. A supervisor that must not block needs setblocking(False), or sendmsg itself.
set -euo pipefail
python3 - <<'END'
import os
import socket
import struct
import sys
import time

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.setblocking(False)
try:
    while True:
        ours.send(b"x" * 1000)
except BlockingIOError:
    pass
ours.setblocking(True)
ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
here = os.open(".", os.O_RDONLY)


def seconds(send):
    began = time.monotonic()
    try:
        send()
    except BlockingIOError:
        return time.monotonic() - began
    raise AssertionError("sent")


own = seconds(lambda: ours.sendmsg([b"x"], [], socket.MSG_DONTWAIT))
helper = seconds(lambda: socket.send_fds(ours, [b"x"], [here], socket.MSG_DONTWAIT))
print(f"Python {sys.version.split()[0]}, full buffer, MSG_DONTWAIT: sendmsg waits {own:.2f} s, send_fds {helper:.2f} s")
assert own < 0.5 <= helper
END
