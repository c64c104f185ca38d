"""What was stored for a file serves again for the same bytes only, whatever times and sizes tell."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from psrun.data import storage
from psrun.errors import DataError
from psrun.tables import columns, formats, preparation, profiles
from psrun.tables.columns import ColumnSpec

TICK_S = 0.02  # in which the time of a file changes on any file system that tests run on


@pytest.fixture
def read(monkeypatch):
    """The names of the files that were read for their digests; no file is too new to be known."""
    names = []
    whole = storage._sha256
    monkeypatch.setattr(storage, "_sha256", lambda name, *rest: names.append(name) or whole(name, *rest))
    monkeypatch.setattr(storage, "_SETTLED_S", 0.0)
    return names


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,0\n2,1\n")
    time.sleep(TICK_S)
    return path


def digest(path: Path | str, *, same_process: bool = True) -> str:
    if not same_process:
        storage._known.clear()
    folder = Path(path).parent / "cache" if isinstance(path, Path) else Path("nowhere")
    return storage.digests([str(path)], folder)[0][1]


def edited(path: Path) -> None:
    """Another content of the same size, with the times of before: as an edit and os.utime do."""
    before = path.stat()
    with path.open("r+") as file:
        file.write(path.read_text().replace("1,0", "7,0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file with the times of before: as copies do that keep times, archives and images."""
    other = path.with_name("other.csv")
    shutil.copy2(path, other)
    edited(other)
    os.replace(other, path)


@pytest.mark.parametrize("change", [edited, replaced])
@pytest.mark.parametrize("same_process", [True, False])
def test_other_bytes_of_the_same_size_and_time_are_noticed(path, read, change, same_process):
    before, stat = digest(path), path.stat()
    change(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert digest(path, same_process=same_process) != before


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.binary(max_size=5), st.binary(max_size=5))
def test_digests_are_equal_where_the_bytes_are(tmp_path_factory, one, other):
    folder = tmp_path_factory.mktemp("files")
    for name, content in (("one", one), ("other", other)):
        (folder / name).write_bytes(content)
    assert (digest(folder / "one") == digest(folder / "other")) == (one == other)


def test_a_file_is_read_once_until_it_changes(path, read):
    first = digest(path)
    assert [digest(path), digest(path, same_process=False), digest(path)] == [first] * 3
    assert len(read) == 1
    path.touch()  # the same bytes
    assert digest(path, same_process=False) == first
    assert len(read) == 2
    (record,) = (path.parent / "cache" / "digests").iterdir()
    for damage in ("", "{", '{"stamp": 1}'):
        record.write_text(damage)
        assert digest(path, same_process=False) == first
    record.unlink()
    record.mkdir()  # cannot be written
    assert digest(path, same_process=False) == first
    assert len(read) == 6


def test_what_has_just_been_written_is_read_each_time(path, read, monkeypatch):
    monkeypatch.setattr(storage, "_SETTLED_S", 5.0)
    assert digest(path) == digest(path)
    assert len(read) == 2


def test_objects_are_known_by_the_version_of_their_store_or_by_their_bytes(read, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    name = "memory://digests/rows.csv"
    contents = (b"one", b"two")
    seen = []
    for content in contents:
        store.pipe("/digests/rows.csv", content)
        seen.append(digest(name))
    assert (len(set(seen)), len(read)) == (2, 2)
    info = type(store).info
    for key, value, is_read in (("ETag", '"5"', False), ("generation", 17, False), ("ETag", 'W/"5"', True)):
        more = {key: value}
        monkeypatch.setattr(type(store), "info", lambda self, path, more=more, **k: {**info(self, path, **k), **more})
        read.clear()
        assert digest(name) == digest(name)
        assert bool(read) == is_read


def test_rows_and_profiles_are_made_again_for_other_bytes(path, read):
    layout = formats.Layout("csv")
    wanted = {"x": ColumnSpec("x", "int64")}

    def pieces(name):
        return ((columns.convert(rows, wanted), None) for rows in formats.rows(name, ["x"], layout))

    contents = preparation.Contents({"x": wanted["x"].prepared}, pieces, "key")
    options = preparation.Options(cache=str(path.parent / "cache"))

    def result() -> tuple:
        prepared = preparation.prepared([str(path)], contents, options)
        looked = profiles.profile_files([str(path)], layout, cache=path.parent / "cache")
        with ipc.open_file(prepared.rows.path) as rows:
            return rows.read_all().column("x").to_pylist(), looked["x"].values

    assert result() == ([1, 2], [1, 2])
    before = sorted(each.name for each in (path.parent / "cache").iterdir())
    assert result() == ([1, 2], [1, 2])
    assert sorted(each.name for each in (path.parent / "cache").iterdir()) == before
    edited(path)
    assert result() == ([7, 2], [2, 7])

    def changing(name):
        time.sleep(TICK_S)
        path.write_text("x,y\n5,0\n6,1\n")
        return pieces(name)

    edited(path)
    path.write_text("x,y\n8,0\n9,1\n")
    changed = preparation.Contents({"x": wanted["x"].prepared}, changing, "key")
    with pytest.raises(DataError, match=r"rows\.csv changed while it was read; start again when it is complete"):
        preparation.prepared([str(path)], changed, options)
