"""A server of the S3 protocol on loopback, and a proxy before it that fails, is slow and loses connections."""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import threading
import time
from collections.abc import Iterator

LOGIN = {"AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "bucket"
_FAILED = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """Forwards connections to a port of this machine, in threads.

    Attributes:
      port: where it listens.
      share: of connections that go wrong, each in one of three ways; 1 with `is_down`.
      is_down: whether no connection gets an answer but 503.
      num_wrong: how many went wrong.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._random = random.Random(1)
        self.port = self._socket.getsockname()[1]
        self.share = 0.0
        self.is_down = False
        self.num_wrong = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._socket.accept()[0]
                threading.Thread(target=self._forward, args=(connection,), daemon=True).start()

    def _forward(self, connection: socket.socket) -> None:
        fault = ""
        if self.is_down or self._random.random() < self.share:
            self.num_wrong += 1
            fault = "fails" if self.is_down else self._random.choice(("fails", "slow", "cut"))
        left = self._random.randrange(2000) if fault == "cut" else 1 << 40
        with contextlib.suppress(OSError), connection, socket.create_connection(self._target) as there:
            if fault == "fails":
                connection.recv(1 << 16)
                connection.sendall(_FAILED)
                return
            while left > 0:
                for source in select.select([connection, there], [], [])[0]:
                    content = source.recv(1 << 14)
                    if not content:
                        return
                    if fault == "slow":
                        time.sleep(0.2)
                    (there if source is connection else connection).sendall(content[:left])
                    left -= len(content)


@contextlib.contextmanager
def served() -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy before a server with an empty bucket, and the environment variables of its users."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    proxy = Proxy(port)
    try:
        client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
            aws_access_key_id="one", aws_secret_access_key="two",
        )  # fmt: skip
        client.create_bucket(Bucket=BUCKET)
        yield proxy, {**LOGIN, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
    finally:
        proxy.close()
        server.stop()
