"""A run that is mirrored to a store: what is there whenever the machine stops, and what a resumed run gets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from messages import refused
from stored_runs import Interfered, Stopped, epochs, half_checkpoints, lacks, save, scripted
from support import flipped

from psrun import files, process
from psrun.checkpoint.storage import Store
from psrun.errors import CheckpointError, ConfigError
from psrun.results.run_folder import RunFolder
from psrun.runs.stores import keeper, remote, views
from psrun.runs.stores.keeper import _Keeper, work_folder
from psrun.runs.stores.mirror import Mirror, fetch
from psrun.runs.stores.remote import Remote, StoreError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The URL of an empty store. What waits for other machines waits for less."""
    monkeypatch.setattr(remote, "_SETTLED_S", 0.0)
    monkeypatch.setattr(remote, "STALE_S", 0.3)
    monkeypatch.setattr(remote, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(files, "sync", lambda path: None)  # of which tests need nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"memory://bucket{tmp_path}/run"
    yield url
    fsspec.filesystem("memory").store.clear()


def objects(url: str) -> dict[str, bytes]:
    """The content of all objects of a run."""
    found = Remote(url)
    return {name: (found.text(name)).encode() for name in found.sizes()}


def mirror_of(url: str, folder: Path, *, at: int | None = None, error: BaseException | None = None) -> Mirror:
    there = Remote(url)
    there._fs = Interfered(there._fs, at, error or Stopped())
    return Mirror(there, folder, {*there.sizes()}, is_equal=False)


def fetched(url: str, folder: Path) -> tuple[Store, list[str]]:
    """The checkpoints of the run in a store on a new machine, and what is said."""
    said: list[str] = []
    there = Remote(url)
    fetch(there, folder, {*there.sizes()}, said.append)
    return Store(folder / "checkpoints"), said


def prepared(url: str, key: str, said: list[str] | None = None, *, alone: bool = True) -> tuple[Mirror, Remote]:
    """What the process that was started does before the run begins.

    Args:
      alone: whether earlier processes of this machine have ended.
    """
    if alone:
        lock = work_folder(url).with_name(f"{work_folder(url).name}.lock")
        lock.unlink(missing_ok=True)
    own = _Keeper(url, key, work_folder(url), 0, 0)
    own._say = (said if said is not None else []).append  # type: ignore[method-assign]
    there = Remote(url, key)
    return own._prepared(there), there


def fails_with(error: Exception) -> None:
    raise error


def elsewhere(monkeypatch, tmp_path) -> None:
    """What follows happens on another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache{len(os.listdir(tmp_path))}"))


def test_a_run_resumes_wherever_its_machine_stops(store, tmp_path):
    """At each call of the store: there is no half checkpoint, the newest one is never lost, nor an event before it."""
    for at in itertools.count(1):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        fsspec.filesystem("memory").store.clear()
        there = mirror_of(store, tmp_path / "run", at=at)
        there._folder.mkdir()
        complete = 0
        try:
            for _ in scripted(tmp_path / "run"):
                there.update()
                complete = max([0, *Store(tmp_path / "run" / "checkpoints").steps()])
        except Stopped:
            pass
        else:
            break
        assert half_checkpoints(objects(store)) == []
        assert lacks(objects(store)) == []
        if not objects(store):
            continue
        checkpoints, said = fetched(store, tmp_path / "other")
        assert said == []
        newest = checkpoints.choose("latest", said.append)
        step = newest.step if newest else 0
        assert step >= complete
        if complete:
            assert epochs(tmp_path / "other")[: step // 10] == [*range(1, step // 10 + 1)]
        if RunFolder(tmp_path / "other").stored().get("status") == "completed":
            assert step == 40
    assert at > 30


def test_a_changed_configuration_is_there_before_the_next_checkpoint(store, tmp_path):
    run = scripted(tmp_path / "run")
    next(run)
    for at in itertools.count(1):
        fsspec.filesystem("memory").store.clear()
        there = mirror_of(store, tmp_path / "run")
        there.update()
        (tmp_path / "run" / "config.yaml").write_text(f"seed: {at + 1}")
        save(tmp_path / "run", 10 * at)
        there._remote._fs = Interfered(there._remote._fs, at, Stopped())
        try:
            there.update()
            break
        except Stopped:
            if f"checkpoints/ckpt-{10 * at}.manifest.json" in objects(store):
                assert objects(store)["config.yaml"] == f"seed: {at + 1}".encode()


def test_errors_of_the_store_are_made_up_for(store, tmp_path):
    for at in range(1, 40, 3):
        failures = 0
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        fsspec.filesystem("memory").store.clear()
        there = mirror_of(store, tmp_path / "run", at=at, error=TimeoutError("too slow"))
        for _ in scripted(tmp_path / "run"):
            try:
                there.update()
            except StoreError:
                failures += 1
        there.update()
        assert failures == 1
        local = {
            path.relative_to(tmp_path / "run").as_posix(): path.read_bytes()
            for path in (tmp_path / "run").rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        assert objects(store) == local


def test_a_checkpoint_that_is_saved_again_replaces_the_one_of_its_step(store, tmp_path):
    all(scripted(tmp_path / "run", num_checkpoints=1))
    mirror_of(store, tmp_path / "run").update()
    save(tmp_path / "run", 10, content=b"other")
    for at in itertools.count(1):
        try:
            mirror_of(store, tmp_path / "run", at=at).update()
            break
        except Stopped:
            assert half_checkpoints(objects(store)) == []
    assert objects(store)["checkpoints/ckpt-10.index"] == b"10 otherindex"


def test_of_old_checkpoints_a_resumed_run_gets_manifests_and_removes_them_as_before(store, tmp_path):
    *_, folder = scripted(tmp_path / "run", num_checkpoints=3)
    Store(folder.checkpoints).compare(20, "auc", 0.9, mode="max")
    save(folder.path, 40)
    save(folder.path, 50)
    mirror_of(store, folder.path).update()
    there = Remote(store)
    names = {*there.sizes()}
    fetch(there, tmp_path / "other", names, print)
    checkpoints = Store(tmp_path / "other" / "checkpoints")
    assert checkpoints.steps() == [50, 40, 20]
    assert [checkpoints.damage(step) is None for step in (50, 40, 20)] == [True, False, True]
    before = {*names}
    going_on = Mirror(there, tmp_path / "other", names, is_equal=True)
    going_on.update()
    assert objects(store).keys() == before  # the files of 40 stay
    save(tmp_path / "other", 60)
    going_on.update()
    steps = {name.split("-")[1].split(".")[0] for name in objects(store) if name.startswith("checkpoints/ckpt-")}
    assert steps == {"60", "50", "20"}
    assert half_checkpoints(objects(store)) == []


def test_a_damaged_checkpoint_is_passed_over_and_stays_in_the_store(store, tmp_path):
    all(scripted(tmp_path / "run"))
    mirror_of(store, tmp_path / "run").update()
    memory = fsspec.filesystem("memory")
    path = f"{Remote(store)._root}/checkpoints/ckpt-40.data-00000-of-00002"
    memory.pipe_file(path, memory.cat_file(path)[:-1] + b"?")
    before = objects(store)
    there = Remote(store)
    names = {*there.sizes()}
    said: list[str] = []
    fetch(there, tmp_path / "other", names, said.append)
    checkpoints = Store(tmp_path / "other" / "checkpoints")
    assert checkpoints.choose("latest", said.append).step == 30
    why = "ckpt-40.data-00000-of-00002 has a checksum mismatch"
    assert said == [f"{store}: the checkpoint of step 40 is damaged ({why}); trying the previous one"]
    Mirror(there, tmp_path / "other", names, is_equal=True).update()
    assert objects(store) == before
    memory.rm_file(f"{Remote(store)._root}/checkpoints/ckpt-30.index")
    with pytest.raises(CheckpointError, match=f"all checkpoints at {store} are damaged"):
        fetched(store, tmp_path / "third")


def test_files_of_others_stay(store, tmp_path):
    Remote(store).write("notes/mine.txt", "mine")
    for _ in scripted(tmp_path / "run", num_checkpoints=1):
        mirror_of(store, tmp_path / "run").update()
    assert objects(store)["notes/mine.txt"] == b"mine"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_checkpoint_that_the_run_removes_while_it_is_uploaded_gets_there(store, tmp_path, monkeypatch, has_links):
    """The run saves more checkpoints than it keeps while the store takes one file."""
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *names: fails_with(PermissionError("no links")))
    there = mirror_of(store, tmp_path / "run")
    *_, folder = scripted(tmp_path / "run", num_checkpoints=1)
    steps = itertools.count(20, 10)
    system = there._remote._fs
    put_file = system.put_file

    def put_slowly(file: str, *arguments, **options):
        if ".data-" in file:
            save(folder.path, next(steps))
            save(folder.path, next(steps))
        put_file(file, *arguments, **options)

    monkeypatch.setattr(system._system, "put_file", put_slowly)
    newest = 0
    for _ in range(3):
        at_begin = Store(folder.checkpoints).steps()[0]
        there.update()
        assert half_checkpoints(objects(store)) == []
        manifests = [name for name in objects(store) if name.endswith(".manifest.json")]
        assert manifests == [f"checkpoints/ckpt-{at_begin}.manifest.json"]
        assert at_begin > newest
        newest = at_begin
    monkeypatch.setattr(system._system, "put_file", put_file)
    there.update()
    hidden = [path for path in folder.path.iterdir() if path.name.startswith(".")]
    assert hidden == []
    kept = {f"checkpoints/ckpt-{step}.manifest.json" for step in Store(folder.checkpoints).steps()}
    assert {name for name in objects(store) if name.endswith(".manifest.json")} == kept


def test_a_file_that_the_run_removes_is_removed(store, tmp_path):
    *_, folder = scripted(tmp_path / "run", num_checkpoints=1)
    folder.end_early("enough")
    there = mirror_of(store, folder.path)
    there.update()
    assert "end-early" in objects(store)
    (folder.path / "end-early").unlink()
    there.update()
    assert "end-early" not in objects(store)


# -- who mirrors


def test_a_run_goes_on_here_where_no_other_machine_was(store, tmp_path, monkeypatch):
    there, own = prepared(store, "hydra.run.dir")
    all(scripted(work_folder(store)))
    own.beat(releases=True)  # the machine stopped before the last update
    there, own = prepared(store, "resume")
    assert objects(store).keys() >= {"run.json", "checkpoints/ckpt-40.manifest.json"}
    own.beat(releases=True)
    here = work_folder(store)
    elsewhere(monkeypatch, tmp_path)
    said: list[str] = []
    there, own = prepared(store, "resume", said)
    assert said == [f"reading {store} to {work_folder(store)}"]
    save(work_folder(store), 50)
    there.update()
    own.beat(releases=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(here.parents[2]))
    there, own = prepared(store, "resume", said)  # the other machine was further
    assert Store(here / "checkpoints").steps() == [50, 40]


def test_a_second_run_at_a_url_is_refused(store, tmp_path, monkeypatch):
    there, own = prepared(store, "hydra.run.dir")
    for _ in scripted(work_folder(store)):
        there.update()
    refused("hydra.run.dir", prepared, store, "hydra.run.dir", alone=False)
    elsewhere(monkeypatch, tmp_path)
    refused("hydra.run.dir", prepared, store, "hydra.run.dir")  # it holds a run
    beats = iter(range(1000))
    monkeypatch.setattr(remote.time, "sleep", lambda s: own.beat() if next(beats) == 1 else None)
    monkeypatch.setattr(remote.time, "time", lambda: float(next(beats)))
    refused("resume", prepared, store, "resume")  # it beats
    assert not own.is_lost


def test_a_machine_that_does_not_beat_is_gone_and_finds_out_when_it_returns(store, tmp_path, monkeypatch):
    there, own = prepared(store, "hydra.run.dir")
    run = scripted(work_folder(store))
    next(run)
    there.update()
    elsewhere(monkeypatch, tmp_path)
    said: list[str] = []
    prepared(store, "resume", said)
    assert "has no end of its last run" in said[0]
    with pytest.raises(StoreError, match="another machine has taken over"):
        own.beat()
    next(run)
    with pytest.raises(StoreError, match="another machine has taken over"):
        there.update()


def test_a_machine_that_stood_still_changes_nothing_when_it_returns(store, tmp_path):
    """Another one takes over after any of its changes, and no beat has told it."""
    for at in itertools.count(1):
        fsspec.filesystem("memory").store.clear()
        shutil.rmtree(work_folder(store), ignore_errors=True)
        there, own = prepared(store, "hydra.run.dir")
        for _ in scripted(work_folder(store), num_checkpoints=2):
            there.update()
        save(work_folder(store), 30)
        own._fs = Interfered(own._fs, at, Stopped())
        with contextlib.suppress(Stopped):
            there.update()
            break
        other = Remote(store)
        other.token = "of another machine"
        other._write_owner()
        before = objects(store)
        with pytest.raises(StoreError, match="another machine has taken over"):
            there.update()
        assert own.is_lost
        assert objects(store) == before
        assert own._fs.calls == at
    assert at > 8


def test_a_run_goes_on_while_the_store_fails_and_ends_with_another_code_without_its_end(store, monkeypatch):
    monkeypatch.setattr(keeper, "_POLL_S", 0.001)
    monkeypatch.setattr(keeper, "_LOOK_EVERY_S", 0.001)
    said: list[str] = []
    own = _Keeper(store, "hydra.run.dir", work_folder(store), 0, 0)
    own._say = lambda text, style="": said.append(text)  # type: ignore[method-assign]
    there = own._remote = Remote(store)
    mirror = own._prepared(there)
    assert own._outcome(0) == 175
    assert said.pop() == (
        f"the end of the run is not at {store} (the upload was not finished), but in {work_folder(store)}; "
        f"on this machine, psrun resume {store} uploads it"
    )
    all(scripted(work_folder(store)))
    system = there._fs
    there._fs = Interfered(system, 1, TimeoutError("too slow"))
    own._code = 0
    own._follow(there, mirror)
    assert said == [
        f"{store} cannot be used: too slow; the run goes on, and tries it again", f"the upload to {store} works again"
    ]  # fmt: skip
    assert own._outcome(0) == 0
    assert own._outcome(130) == 130
    assert said.pop() == f"all of the run is at {store}"
    own._lacks = "not yet"
    there._is_released = False
    there.token = "of before"
    with pytest.raises(StoreError):
        there.beat()
    own._follow(there, mirror)
    assert said.pop() == f"another machine has taken over {store}; the run goes on, without upload"
    assert own._outcome(0) == 1
    assert "uploads it" not in said.pop()


@pytest.mark.parametrize("fails", ["has_new_checkpoint", "update"])
def test_the_upload_goes_on_after_an_error_that_nobody_hears_of(store, monkeypatch, fails):
    """The terminal is gone, and the local disk or the store fails once."""
    monkeypatch.setattr(keeper, "_POLL_S", 0.001)
    monkeypatch.setattr(keeper, "_LOOK_EVERY_S", 0.001)
    own = _Keeper(store, "hydra.run.dir", work_folder(store), 0, 0)
    there = Remote(store)
    mirror = own._prepared(there)
    all(scripted(work_folder(store)))
    works = getattr(mirror, fails)
    failed = []

    def fail():
        monkeypatch.setattr(mirror, fails, works)
        failed.append(1)
        own._code = 0  # the run ends
        fails_with(OSError("Input/output error"))

    monkeypatch.setattr(mirror, fails, fail)
    monkeypatch.setattr(own._console, "print", lambda *texts, **style: fails_with(OSError("Input/output error")))
    own._follow(there, mirror)
    assert failed
    assert own._lacks is None
    assert "checkpoints/ckpt-40.manifest.json" in objects(store)


def test_the_end_of_a_run_is_told_again_after_an_error(store):
    there = Remote(store)
    there.claim(None, print)
    there._fs = Interfered(there._fs, 1, TimeoutError("too slow"))
    with pytest.raises(StoreError):
        there.beat(releases=True)
    there.beat(releases=True)
    assert there.owner()["released"]
    there.beat()  # of the thread, which comes late
    assert there.owner()["released"]


@pytest.mark.parametrize("runs", [True, False])
def test_a_copy_on_a_disk_that_machines_share_goes_on_once_the_other_machine_is_gone(store, monkeypatch, runs):
    """The disk has no locks: only beats show whether the other machine still mirrors the copy."""
    _, other = prepared(store, "hydra.run.dir")
    all(scripted(work_folder(store)))
    here = {**process.place(), "host": "another"}
    monkeypatch.setattr(process, "place", lambda: here)
    if runs:
        monkeypatch.setattr(remote.time, "sleep", lambda s: other.beat())
        with pytest.raises(ConfigError, match="is in use"):
            prepared(store, "resume")
        return
    said: list[str] = []
    prepared(store, "resume", said)
    assert len(said) == 1
    assert "has no end of its last run" in said[0]
    assert "checkpoints/ckpt-40.manifest.json" in objects(store)
    with pytest.raises(StoreError, match="another machine has taken over"):
        other.beat()


def test_of_two_that_claim_at_once_one_goes_on(store, monkeypatch):
    first, second = Remote(store), Remote(store)
    monkeypatch.setattr(remote.time, "sleep", lambda s: second._write_owner())
    second.token = "second"
    with pytest.raises(ConfigError, match=f"process {os.getpid()} on .* mirrors a run to it"):
        first.claim(None, print)


def test_an_owner_that_two_have_written_at_once_is_another_one(store, monkeypatch):
    first = Remote(store)
    monkeypatch.setattr(remote.time, "sleep", lambda s: first.write(remote._OWNER, "{}}"))
    with pytest.raises(ConfigError, match="is in use"):
        first.claim(None, print)


def test_a_run_that_was_refused_makes_room(store):
    _, own = prepared(store, "hydra.run.dir")
    own.beat(releases=True)
    assert objects(store) == {}
    (work_folder(store) / "run.json").write_text(json.dumps({"status": "failed", "exit_code": 2}))
    prepared(store, "hydra.run.dir")
    assert not (work_folder(store) / "run.json").exists()


def test_a_run_that_never_reached_the_store_is_not_replaced(store):
    prepared(store, "hydra.run.dir")
    all(scripted(work_folder(store)))
    with pytest.raises(ConfigError, match=r"holds a run that is not at .*; to upload it: psrun resume"):
        prepared(store, "hydra.run.dir")
    prepared(store, "resume")
    assert "checkpoints/ckpt-40.manifest.json" in objects(store)


# -- what is refused, and what commands read


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nowhere://bucket/run", r"nowhere:// is unknown to fsspec, or its package is not installed \(Protocol not kn"),
        ("sftp://host/run", r"sftp:// is unknown to fsspec, or its package is not installed .*: pip install 'psrun"),
        ("memory://bucket/${now:%H}", "write a fixed name"),
        ("s3://", "is s3://; name a folder in the store, such as s3://BUCKET/runs/RUN"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_its_key(url, text):
    with pytest.raises(ConfigError, match=text) as raised:
        keeper.begin(url, "resume") if "$" in url or url == "s3://" else Remote(url, "resume")
    assert [problem.key for problem in raised.value.problems] == ["resume"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("The specified bucket does not exist"), ConfigError),
        (PermissionError("Access Denied\nmore"), ConfigError),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), ConfigError),
        (OSError("503"), StoreError),
    ],
)
def test_an_error_of_a_store_is_one_sentence(store, error, kind):
    there = Remote(store, "hydra.run.dir")
    there._fs = Interfered(there._fs, 1, error)
    with pytest.raises(kind) as raised:
        there.write("a", "")
    assert str(raised.value).endswith(f"{store} cannot be used: {str(error).splitlines()[0]}")


def test_there_is_no_run_to_resume(store):
    with pytest.raises(ConfigError, match=f"there is no run at {store}"):
        prepared(store, "resume")
    assert fsspec.filesystem("memory").store == {}


def test_commands_read_what_they_show(store, tmp_path):
    *_, folder = scripted(tmp_path / "run")
    folder.log("chief-0").write_text("a line\n")
    for each in ("vocabularies/id.txt", "data.json", ".hydra/overrides.yaml"):
        (folder.path / each).parent.mkdir(exist_ok=True)
        (folder.path / each).write_text("[]")
    mirror_of(store, folder.path).update()
    above = store.rpartition("/")[0]

    def names(word: str, *arguments: str) -> set[str]:
        with views.local(word, arguments) as local:
            root = Path(local[-1])
            return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}

    small = {"run.json", "metrics.jsonl", "config.yaml", "data.json", ".hydra/overrides.yaml"}
    assert names("list", above) == {f"run/{name}" for name in small}
    assert names("logs", store) == small | {"logs/chief-0.log"}
    assert {*names("checkpoint", "inspect", store)} >= {f"checkpoints/ckpt-{step}.index" for step in (30, 40)}
    needed = {"checkpoints/vocabularies/10.jsonl", "vocabularies/id.txt", "data.json", ".hydra/overrides.yaml"}
    assert names("checkpoint", "export", store) >= needed | {"following.json", "checkpoints/ckpt-40.index"}
    assert "checkpoints/ckpt-30.index" not in names("checkpoint", "export", store)
    with views.local("checkpoint", ["diff", f"{store}/checkpoints/ckpt-30", store, "--to", "memory://x"]) as local:
        assert [Path(path).name for path in local] == ["diff", "ckpt-30", "run", "--to", "x"]
        assert Store(Path(local[1]).parent).damage(30) is None
        assert Store(Path(local[2]) / "checkpoints").damage(40) is None
        assert local[-1] == "memory://x"
    assert not Path(local[1]).exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["list", "memory://b/run"], "there is no run at memory://b/run"),
        (["rm", "memory://b/run", "--yes"], "removes folders on disks; remove memory://b/run with the tools of the s"),
    ],
)
def test_a_command_that_cannot_read_a_run_there_says_so(arguments, text):
    with pytest.raises(ConfigError, match=text), views.local(arguments[0], arguments[1:]):
        pass


def test_other_commands_keep_their_urls():
    with views.local("data", ["inspect", "s3://bucket/table.csv"]) as local:
        assert local == ["inspect", "s3://bucket/table.csv"]


def test_half_of_a_file_is_found(tmp_path):
    """The check of these tests."""
    save(tmp_path, 10)
    names = {path.relative_to(tmp_path).as_posix(): path for path in (tmp_path / "checkpoints").iterdir()}
    whole = {name: path.read_bytes() for name, path in names.items() if path.is_file()}
    assert half_checkpoints(whole) == []
    flipped(names["checkpoints/ckpt-10.index"])
    assert half_checkpoints({name: path.read_bytes() for name, path in names.items() if path.is_file()}) != []
