"""Which files a source reads, and what identifies them."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from psrun.data import storage


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    for name in ("parts/a.csv", "parts/b.csv", "one.npz", "label"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_are_those_of_the_source_or_those_that_options_name(folder):
    assert storage.files_of_source(SimpleNamespace(files=["one.npz"]), {"path": "parts"}) == ["one.npz"]
    options = {
        "path": "parts", "label": "label", "other": ["one.npz", 3], "eval_path": "parts/*.csv", "scale": 0.5,
        "missing_path": "nowhere/x.csv", "pattern": "parts/[ab].csv", "cache": "parts", "remote": "s3://bucket/x.csv",
        "message": "nothing. at all",
    }  # fmt: skip
    assert sorted(storage.files_of_source(object(), options)) == ["one.npz", "parts/a.csv", "parts/b.csv"]
    assert storage.files_of_source(object(), {}) == []


def test_large_files_are_told_by_their_ends(folder, monkeypatch):
    monkeypatch.setattr(storage, "_MOST_BYTES", 10)
    monkeypatch.setattr(storage, "_END_BYTES", 4)
    monkeypatch.setattr(storage, "_SETTLED_S", 0.0)
    (folder / "large").write_bytes(b"0123456789abcdef")
    whole = {"sha256": hashlib.sha256(b"one.npz").hexdigest(), "bytes": 7}
    found = storage.content_hashes(["one.npz", "large"])
    ends = {"sha256": hashlib.sha256(b"0123cdef").hexdigest(), "bytes": 16, "of": "first and last 16 MiB"}
    assert found == {"one.npz": whole, "large": ends}
    (folder / "large").write_bytes(b"0123----89abcdef")
    assert storage.content_hashes_again({**found, "gone": whole}) == {"one.npz": whole, "large": ends, "gone": None}
    (folder / "large").write_bytes(b"0123456789abcdeX")
    assert storage.content_hashes_again(found)["large"] != ends
    storage.digests(["large"], folder)  # as a table does
    assert "of" not in storage.content_hashes(["large"])["large"]
