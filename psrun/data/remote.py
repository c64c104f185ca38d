"""Files on TensorFlow's file systems, such as gs:// and hdfs://, with the errors of local files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import tensorflow as tf

from psrun.data.file_system import FileSystem


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Raises TensorFlow's errors as OSError, with their message."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


class _Raw(io.RawIOBase):
    """A file with the interface of Python's file objects."""

    def __init__(self, name: str) -> None:
        self._file = tf.io.gfile.GFile(name, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        with os_errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with os_errors():
            self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _num_bytes(name: str) -> int:
    with os_errors():
        return tf.io.gfile.stat(name).length


def _modified_ns(name: str) -> int:
    with os_errors():
        return tf.io.gfile.stat(name).mtime_nsec


def _glob(pattern: str) -> list[str]:
    with os_errors():
        return tf.io.gfile.glob(pattern)


TENSORFLOW = FileSystem(tf.io.gfile.isdir, _glob, _num_bytes, _modified_ns, _Raw)
