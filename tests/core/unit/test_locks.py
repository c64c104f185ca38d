"""Locks of files and folders."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from psrun import files


def test_a_lock_is_taken_once_until_it_is_closed(tmp_path):
    waits = []
    descriptor = files.lock(tmp_path)
    assert (files.is_locked(tmp_path), files.hold(tmp_path)) == (True, False)
    assert files.lock(tmp_path, within_s=0.01, on_wait=lambda: waits.append(1)) is None
    assert waits
    os.close(descriptor)
    assert not files.is_locked(tmp_path)


def test_a_context_goes_on_without_a_lock_that_it_does_not_get(tmp_path):
    with files.alone(tmp_path / "lock", within_s=1) as first, files.alone(tmp_path / "lock", within_s=0) as second:
        assert (first, second) == (True, False)
    assert not files.is_locked(tmp_path / "lock")


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert files.hold(tmp_path)
    with files.alone(tmp_path / "lock", within_s=1) as locked:
        assert not locked
    with pytest.raises(OSError, match="no locks"):
        files.is_locked(tmp_path)
