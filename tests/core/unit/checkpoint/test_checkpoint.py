"""The folder of checkpoints: what is good, what is taken, what is kept. Plain files; no TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import flipped, truncated

from psrun.checkpoint import commands, storage
from psrun.checkpoint.storage import Contents, Manifest, Position, Store
from psrun.errors import CheckpointError, ConfigError, ExitCode

TABLE = {"table": {"shape": [8, 2], "dtype": "float32"}}
SHARDS = [{"variable": "table", "shard": shard, "task": f"ps-{shard}", "bytes": 32} for shard in (0, 1)]
CONTENTS = Contents("Adagrad", TABLE, {"table/accumulator": TABLE["table"]}, SHARDS, {})
ENDINGS = (".index", ".data-00000-of-00002", ".data-00001-of-00002", ".manifest.json")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Checkpoints of the steps 100, 200 and 300."""
    store = Store(tmp_path / "checkpoints")
    for step in (100, 200, 300):
        save(store, step)
    return store


def write(store: Store, step: int) -> None:
    """The files that TensorFlow writes."""
    store.make_room(step)
    for ending in ENDINGS[:3]:
        Path(store.prefix(step) + ending).write_bytes(f"{step}{ending}".encode() * 5)


def save(store: Store, step: int) -> Manifest:
    write(store, step)
    (store.folder / "checkpoint").write_text(f'model_checkpoint_path: "ckpt-{step}"')
    return store.complete(Manifest(step, Position(step // 100, 0), CONTENTS, "abc", saved_at=""))


def everything(store: Store) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in store.folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("state", [b'model_checkpoint_path: "ckpt-300"', b"\x00\xffgarbage", b"", None])
def test_the_newest_is_taken_whatever_the_state_file_says(store, state):
    file = store.folder / "checkpoint"
    file.unlink() if state is None else file.write_bytes(state)
    checkpoint = store.choose("latest", pytest.fail)
    assert (checkpoint.step, checkpoint.position, checkpoint.contents) == (300, Position(3, 0), CONTENTS)
    assert set(checkpoint.files) == {f"ckpt-300{ending}" for ending in ENDINGS[:3]}


@pytest.mark.parametrize("harm", [truncated, flipped, Path.unlink])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_damaged_one_is_passed_over_for_the_one_before(store, ending, harm):
    harm(Path(store.prefix(300) + ending))
    warned: list[str] = []
    assert store.choose("latest", warned.append).step == 200
    if (ending, harm) != (".manifest.json", Path.unlink):  # without a manifest it never was one
        assert len(warned) == 1
        assert "ckpt-300" in warned[0]
        assert ending in warned[0] or "manifest" in warned[0]


def test_sizes_alone_do_not_show_all_damage(store):
    flipped(Path(store.prefix(300) + ".index"))
    assert store.damage(300, thorough=False) is None
    assert "checksum" in store.damage(300)


@pytest.mark.parametrize("harm", [truncated, flipped, Path.unlink])
def test_where_none_is_good_nothing_starts_anew(store, harm):
    for step in store.steps():
        harm(Path(store.prefix(step) + ".manifest.json"))
    with pytest.raises(CheckpointError, match="are damaged; to start a new run"):
        store.choose("latest", lambda text: None)


def test_where_none_ever_was_complete_there_is_none(tmp_path):
    assert Store(tmp_path / "nowhere").choose("latest", pytest.fail) is None
    cut_short = Store(tmp_path / "cut")
    write(cut_short, 100)
    assert cut_short.choose("latest", pytest.fail) is None


def test_a_step_or_the_best_can_be_named(store):
    assert store.choose("200", pytest.fail).step == 200
    with pytest.raises(ConfigError, match=r"there is no checkpoint '250'.*there: 300, 200, 100"):
        store.choose("250", pytest.fail)
    with pytest.raises(ConfigError, match=r"no checkpoint 'best'.*train with checkpoint\.best_metric="):
        store.choose("best", pytest.fail)
    store.compare(100, "val_auc", 0.9, mode="max")
    assert store.choose("best", pytest.fail).step == 100
    flipped(Path(store.prefix(100) + ".index"))
    with pytest.raises(CheckpointError, match="ckpt-100 is damaged"):
        store.choose("best", pytest.fail)


def test_the_newest_and_the_best_are_kept(store):
    assert store.compare(100, "val_loss", 0.5, mode="min")
    assert not store.compare(200, "val_loss", 0.7, mode="min")
    save(store, 400)
    assert store.prune(400, 2) == [400, 300, 100]
    assert store.steps() == [400, 300, 100]
    assert not [name for name in everything(store) if name.startswith("ckpt-200")]
    assert store.compare(400, "val_loss", 0.3, mode="min")
    assert store.prune(400, 1) == [400]
    assert store.compare(400, "auc", 0.1, mode="max")  # another metric is another contest
    assert store.best() == {"step": 400, "metric": "auc", "mode": "max", "value": 0.1}
    assert not store.compare(400, "loss", float("nan"), mode="min")


def test_the_one_just_saved_is_kept_beside_those_of_higher_steps(store):
    """A run that went on from an older checkpoint saves one of a lower step than those that it left behind."""
    save(store, 150)
    assert store.prune(150, 1) == [150]
    assert store.steps() == [150]


def test_a_best_one_that_was_damaged_is_no_longer_the_best(store):
    """Damaged ones are set aside, and can be looked at."""
    store.compare(300, "loss", 0.1, mode="min")
    flipped(Path(store.prefix(300) + ".index"))
    assert store.choose("latest", lambda text: None).step == 200
    assert store.set_aside() == [300]
    assert store.steps() == [200, 100]
    assert Store(store.folder / "set-aside").steps() == [300]
    write(store, 300)
    Path(store.prefix(300) + ENDINGS[0]).write_text("of a training that went another way")
    store.complete(Manifest(300, Position(3), CONTENTS, "abc", saved_at=""))
    assert store.best() is None
    assert store.compare(300, "loss", 0.6, mode="min")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 300}', '{"step": "x", "files": {}}'])
def test_a_garbage_record_of_the_best_one_is_none(store, text, capsys):
    (store.folder / "best.json").write_text(text)
    assert store.best() is None
    assert commands.main(["inspect", str(store.folder)]) == ExitCode.DONE
    assert store.compare(300, "loss", 0.6, mode="min")


def test_one_that_a_run_going_on_removes_meanwhile_is_not_called_damaged(store, monkeypatch):
    def removed(step: int, thorough: bool = True) -> str | None:
        if step == 300:
            store._remove(300)
            save(store, 400)
            return "ckpt-300.index is missing"
        return None

    monkeypatch.setattr(store, "damage", removed)
    assert store.choose("latest", pytest.fail).step == 400


def test_what_saves_that_were_cut_short_left_behind_is_removed(store):
    before = everything(store)
    write(store, 400)
    (store.folder / "ckpt-400_temp").mkdir()
    (store.folder / "ckpt-400_temp" / "part-0").write_text("half")
    (store.folder / ".ckpt-400.manifest.json.77").write_text("{")
    store.make_room(500)
    assert everything(store) == before
    assert not (store.folder / "ckpt-400_temp").exists()


def test_what_a_failed_save_left_is_removed_with_what_servers_write_later(store, monkeypatch):
    before = everything(store)
    save(store, 400)
    late = [store.folder / "ckpt-400_temp" / f"part-{index}" for index in range(3)]
    still_to_write = [file for file in late for _ in range(5)]

    def write_late(seconds: float) -> None:
        if still_to_write:
            file = still_to_write.pop()
            file.parent.mkdir(exist_ok=True)
            file.write_text("half")

    monkeypatch.setattr("time.sleep", write_late)
    store.discard(400)
    assert not still_to_write
    assert everything(store) == {**before, "checkpoint": b'model_checkpoint_path: "ckpt-400"'}
    assert not late[0].parent.exists()


def test_a_checkpoint_of_which_a_part_is_missing_does_not_become_complete(store):
    write(store, 400)
    Path(store.prefix(400) + ENDINGS[1]).unlink()
    with pytest.raises(FileNotFoundError, match="mount the same run folder in all tasks"):
        store.complete(Manifest(400, Position(), CONTENTS, "abc", saved_at=""))
    assert store.steps() == [300, 200, 100]


def test_shards_may_lie_elsewhere():
    CONTENTS.check("ckpt-1", Contents("Adagrad", TABLE, CONTENTS.slots, [], {}))


def test_a_manifest_with_counts_of_applied_examples_is_read_without_them(store):
    """Checkpoints of earlier versions have them."""
    path = storage.manifest_path(store.prefix(300))
    held = json.loads(path.read_text())
    del held["sha256"]
    held["position"]["audit"] = "eJz7"
    path.write_text(json.dumps({**held, "sha256": storage.digest(held)}))
    assert store.choose("latest", pytest.fail).position == Position(3, 0)


def test_a_manifest_of_another_shape_is_damage(store):
    path = storage.manifest_path(store.prefix(300))
    plain = json.loads(path.read_text())
    del plain["sha256"], plain["contents"]
    path.write_text(json.dumps({**plain, "sha256": storage.digest(plain)}))
    assert "manifest" in store.damage(300)
    path.write_text("[1, 2]")
    assert "manifest" in store.damage(300)


def test_inspect_describes_all_and_each(store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    store.compare(200, "val_auc", 0.75, mode="max")
    truncated(Path(store.prefix(100) + ".index"))
    for path in (store.folder, store.folder.parent):
        assert commands.main(["inspect", str(path)]) == ExitCode.DONE
        rows = capsys.readouterr().out.splitlines()
        assert [row.split()[0] for row in rows if row.strip().startswith(("1", "2", "3"))] == ["300", "200", "100"]
        assert "latest" in rows[2]
        assert "best val_auc 0.75" in rows[3]
        assert "damaged: ckpt-100.index has" in rows[4]
    for name in ("ckpt-300", "ckpt-300.index", "ckpt-300.data-00000-of-00002"):
        assert commands.main(["inspect", str(store.folder / name)]) == ExitCode.DONE
        message = capsys.readouterr().out
        assert "3 epochs and 0 steps" in message
        assert "8x2 float32" in message
        assert "ps-0 ps-1" in message
        assert "ckpt-300.data-00001-of-00002" in message


def test_verify_reads_everything(store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert commands.main(["verify", str(store.folder)]) == ExitCode.DONE
    flipped(Path(store.prefix(200) + ".index"))
    assert commands.main(["verify", str(store.folder)]) == ExitCode.FAILED
    assert "ckpt-200.index has a checksum mismatch" in capsys.readouterr().out
    assert commands.main(["verify", store.prefix(300)]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("name", "message"),
    [("no/such", "no such folder"), ("", "there is no checkpoint in"), ("checkpoints/ckpt-7", "there: 300, 200, 100")],
)
def test_a_path_without_a_checkpoint_is_reported(store, name, message):
    (store.folder.parent / "empty").mkdir()
    path = store.folder.parent / (name or "empty")
    with pytest.raises(ConfigError, match=message):
        commands.main(["inspect", str(path)])


def test_a_command_line_that_makes_no_sense_is_reported(capsys):
    for arguments in ([], ["look", "x"], ["verify"], ["diff", "one"]):
        with pytest.raises(SystemExit, match="2"):
            commands.main(arguments)
    assert "psrun checkpoint" in capsys.readouterr().err
