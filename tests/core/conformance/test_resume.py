"""`psrun resume=RUN_FOLDER`: a run goes on where it stopped, also on another topology."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_injection import MOSTLY_WAITING, Cluster
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from support import STEPS, many_epochs, raw_config

from psrun.cli import command_line
from psrun.config import groups
from psrun.config.groups import key_of
from psrun.config.run_config import FROM_DATA
from psrun.errors import ConfigError, ExitCode, Problem
from psrun.results.recorded_config import _merged, as_recorded
from psrun.results.run_folder import write_config
from psrun.roles import run_process

# For root, who may write everywhere otherwise.
BOUND_BY_PERMISSIONS = (
    ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
)
QUICK = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]


def recorded(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"overrides": overrides}))
    return folder


def test_recorded_overrides_hold_unless_new_ones_replace_them(tmp_path):
    folder = recorded(
        tmp_path / "a run", "cluster=local", "cluster.num_workers=3", "+model.x=1", "trainer.epochs=2", "seed=7"
    )
    composed = command_line.composed([f"resume='{folder}'", "cluster=none", "trainer.epochs=5"])
    assert composed.hydra.overrides.task == [
        "cluster=none", "trainer.epochs=5", f"resume='{folder}'", "+model.x=1", "seed=7"
    ]  # fmt: skip
    assert composed.hydra.overrides.hydra == [f"hydra.run.dir='{folder}'"]
    assert (composed.seed, composed.model.x, composed.cluster.kind) == (7, 1, "none")
    assert command_line.composed(["seed=3"]).hydra.overrides.task == ["seed=3"]


def test_a_choice_that_a_file_takes_from_another_group_is_no_choice_of_the_run():
    recorded_choices = {"optimizer": "adam", "optimizer@table_optimizer": "ftrl", "model@_global_.model": "dense"}
    assert command_line.inherited_choices(recorded_choices, ()) == {"optimizer": "adam", "model": "dense"}


@pytest.mark.parametrize("mode", ["train", "predict", "evaluate"])
def test_a_run_that_may_only_be_read_is_reported(tmp_path, mode):
    folder = recorded(tmp_path / "run", "cluster=none", "model=dense")
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("[]\n")
    for path in (folder / ".hydra", folder):
        path.chmod(0o500)
    command = [*BOUND_BY_PERMISSIONS, sys.executable, "-m", "psrun", f"mode={mode}", f"resume={folder}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    folder.chmod(0o700)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert done.stderr == f"psrun: resume: {folder} cannot be written to: Permission denied; resume a copy of it\n"


def test_options_may_stand_anywhere():
    given = ["seed=1", "--config-dir", "own", "-m", "model=mine,dense", "--cfg", "job", "+x=1"]
    assert groups.options_first(given) == [
        "--config-dir", "own", "-m", "--cfg", "job", "seed=1", "model=mine,dense", "+x=1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["resume=/no/such"], "there is no run in /no/such"), (["resume={}", "hydra.run.dir=x"], "remove hydra.run.dir")],
)
def test_what_cannot_be_resumed_is_reported(tmp_path, arguments, message):
    folder = recorded(tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        command_line.composed([argument.format(folder) for argument in arguments])


RECORDED = """
seed: 7
model: {_target_: mine.model, width: 4, depth: 1}
data: {_target_: psrun.data.datasets.HeroFeatures, global_batch_size: 32}
cluster: {kind: local, num_workers: 3, num_ps: 2}
trainer: {kind: fit, epochs: 2}
evaluation: {kind: direct, every: 5}
"""


def test_what_was_recorded_holds_whatever_the_files_contain_today(tmp_path):
    (tmp_path / "config.yaml").write_text(RECORDED)
    today = {
        "mode": "train",
        "seed": 1,
        "model": {"_target_": "mine.model", "width": 8, "new": True},
        "data": {"_target_": "other.Data", "global_batch_size": 64},
        "cluster": {"kind": "none"},
        "trainer": {"kind": "fit", "epochs": 9, "folder": f"{tmp_path}/x"},
        "evaluation": {"kind": "direct", "every": 1},
    }
    message = ["cluster=none", "trainer.epochs=9", "data.global_batch_size=64", "--config-dir", "conf", "~model.depth"]
    refers = {**today, "trainer": {**today["trainer"], "folder": "${hydra:runtime.output_dir}/x"}}
    assert as_recorded(today, refers, tmp_path, {*map(key_of, message)}) == {
        "mode": "train",
        "seed": 7,
        "model": {"_target_": "mine.model", "width": 4, "new": True},
        "data": {"_target_": "psrun.data.datasets.HeroFeatures", "global_batch_size": 64},
        "cluster": {"kind": "none"},
        "trainer": {"kind": "fit", "epochs": 9, "folder": f"{tmp_path}/x"},
        "evaluation": {"kind": "direct", "every": 5},
    }
    assert as_recorded(today, today, tmp_path, {"experiment"}) == today


@pytest.mark.parametrize(
    ("here", "refers", "there", "now", "merged"),
    [
        ([{"x": "/new/log"}], [{"x": "${dir}/log"}], [{"x": "/old/log"}], set(), [{"x": "/new/log"}]),
        ([1, 2], [1, 2], [7], set(), [7]),
        ({"a": {"b": 8}}, {"a": {"b": 8}}, {"a": None}, {"k.a.b"}, {"a": {"b": 8}}),
        ({"_target_": "x", "a": {"b": 8, "c": 1}}, {"_target_": "x", "a": {"b": 8, "c": 1}},
         {"_target_": "y", "a": {"b": 4}}, {"k.a.b"}, {"_target_": "y", "a": {"b": 8, "c": 1}}),
        ({"kind": "x", "p": 1}, {"kind": "x", "p": 1}, {"kind": "y", "q": 2}, set(), {"kind": "y", "q": 2}),
        ({"a": 3}, {"a": "${seed}"}, {"a": 1}, {"seed"}, {"a": 3}),
    ],
)  # fmt: skip
def test_keys_set_now_and_keys_that_refer_to_them_win(here, refers, there, now, merged):
    assert _merged(here, refers, there, "k", now) == merged


OWN = {
    "model/mine": "_target_: psrun.models.model.embedding\nembedding_dim: 5\nnote: ${seed}\nunwanted: {width: 3}\n",
    "data/mine": "_target_: psrun.data.datasets.HeroFeatures\nglobal_batch_size: 32\n"
    "num_train_examples: 500\nnum_eval_examples: 7\n",
    "cluster/here": "kind: local\nnum_workers: 3\nnum_ps: 1\n",
    "experiment/tried": "# @package _global_\ndefaults:\n  - override /model: mine\n  - override /data: mine\n"
    "optimizer: {clipnorm: 0.5}\ntrainer: {epochs: 4}\n",
    "regime/fast": "# @package _global_\noptimizer: {learning_rate: 0.25}\n",
    "model/head/big": "units: 64\n",
    "optimizer/adagrad": "_target_: tf_keras.optimizers.Adagrad\nlearning_rate: 0.75\nepsilon: 0.5\n",  # as psrun's
}


class Composed:
    """Composes as the command does; a run is recorded, and ends at once with `code`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code = ExitCode.DONE
        for name, text in OWN.items():
            (root / "own" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "own" / f"{name}.yaml").write_text(text)
        monkeypatch.chdir(root)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
        monkeypatch.setattr(run_process, "execute", self._execute)
        self._argv = lambda arguments: monkeypatch.setattr(sys, "argv", ["psrun", *arguments])

    def __call__(self, *arguments: str) -> dict[str, Any]:
        self._argv(arguments)
        ConfigStore.instance().repo = {
            k: v for k, v in ConfigStore.instance().repo.items() if k not in {name.partition("/")[0] for name in OWN}
        }  # as in another process
        command_line.run_experiment(0.0)
        return self.raw

    def _execute(self, raw: dict[str, Any], path: Path, overrides: list[str], **_: Any) -> ExitCode:
        self.raw = raw
        if self.code == ExitCode.DONE and raw["mode"] == "train":
            write_config(path, raw)
            (path / "run.json").write_text(json.dumps({"overrides": overrides}))
        return self.code


@pytest.fixture
def composed(tmp_path, monkeypatch):
    return Composed(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "chosen",
    [
        [
            "model=mine",
            "data=mine",
            "cluster=here",
            "+model.more=1",
            "model.note=3",
            "~model.unwanted",
            "~trainer.prefetch_rows",
        ],
        pytest.param(["experiment=tried", "model.embedding_dim=6", "cluster.num_ps=3"], marks=pytest.mark.thorough),
        pytest.param(["+regime=fast", "model=mine", "+model/head=big"], marks=pytest.mark.thorough),
    ],
)
def test_what_own_groups_chose_is_recorded_and_holds_without_them(composed, tmp_path, chosen):
    began = composed("--config-dir", "own", "hydra.run.dir=run", *chosen)
    (tmp_path / "own").rename(tmp_path / "gone")
    repeated = [each for each in chosen if "." not in each]  # the groups
    for named in ([], repeated):
        assert {**composed("resume=run", *named), "resume": None} == began
    for mode, added in (("evaluate", "data.num_eval_examples=9"), ("train", "optimizer.learning_rate=0.125")):
        changed = composed("resume=run", f"mode={mode}", added)
        key, _, value = added.partition("=")
        group, _, name = key.partition(".")
        assert changed[group] == {**began[group], name: float(value)}
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["overrides"]
    assert set(recorded) >= set(chosen)


def test_what_is_missing_in_another_folder_is_told_with_the_first_one(composed, tmp_path, monkeypatch):
    composed("hydra.run.dir=run", "model=dense")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def refuse(*_: Any, **__: Any) -> ExitCode:
        raise ConfigError([Problem("data.path", "'x.csv' does not exist")])

    monkeypatch.setattr(run_process, "execute", refuse)
    where = f"resume: the run was started in {tmp_path}; files and modules are searched in the current folder, "
    with pytest.raises(ConfigError, match=where):
        composed("resume=../run", "seed=3")
    with pytest.raises(ConfigError, match=r"^data\.path: 'x\.csv' does not exist$"):
        composed("resume=../run", "+data.path=x.csv")


def test_a_refused_resume_rewrites_nothing(composed, tmp_path):
    composed("--config-dir", "own", "hydra.run.dir=run", "model=mine", "data=mine")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert len(before) == 5
    composed.code = ExitCode.USAGE
    composed("resume=run", "trainer.epochs=7", "model.embedding_dim=7")
    (tmp_path / "own").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"^model: there is no model named 'other'") as raised:
        composed("resume=run", "model=other")
    assert len(raised.value.problems) == 1
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_the_files_of_hydra_are_replaced_whole(composed, tmp_path):
    """A process that resumes or watches the run may read these files while another one writes them."""
    composed("hydra.run.dir=run")
    files = {path.name: path.open() for path in (tmp_path / "run" / ".hydra").iterdir()}
    before = {name: (tmp_path / "run" / ".hydra" / name).read_text() for name in files}
    composed("resume=run", "seed=7")
    for name, file in files.items():
        with file:
            assert file.read() == before[name], name
    assert "seed: 7" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()
    assert {path.name for path in (tmp_path / "run" / ".hydra").iterdir()} == {*files}


@pytest.mark.thorough
@pytest.mark.command
def test_a_run_resumes_on_another_cluster(psrun):
    """By the command; tests/harness/layouts.py, which `test_export` runs, resumes from every layout in every other."""
    first = psrun("partitioner=fixed_shards", "optimizer=adam", *QUICK, "trainer.epochs=1")
    assert first.code == 0, first.stderr
    assert re.search(r"completed 20 steps in [\d.]+ s \(first step after [\d.]+ s\)", first.stdout), first.stdout
    second = psrun(f"resume='{first.folder}'", "cluster=none", "trainer=fit", "trainer.epochs=3")
    assert second.code == 0, second.stderr
    assert "resumed from step 20" in second.stdout
    by_whom = r"completed 60 steps in ([\d.]+) s .*, the last 40 of them by this process in ([\d.]+) s"
    in_all = re.search(by_whom, second.stdout)
    assert in_all, second.stdout
    assert 0 < float(in_all[2]) < float(in_all[1])
    result = first.result  # as it is now
    assert result["status"] == "completed"
    assert result["steps"] == {"applied": 60, "scheduled": 60, "repeated": 0}
    assert result["cluster"]["topology"] == "none"
    assert "optimizer=adam" in result["overrides"]
    assert [row["step"] for row in result["checkpoints"]] == [20, 40, 60]
    events = [json.loads(line) for line in (first.folder / "metrics.jsonl").read_text().splitlines()]
    times = [event["wall_s"] for event in events]
    assert times == sorted(times)


@pytest.mark.tensorflow
def test_another_model_or_optimizer_is_refused_with_what_differs(train):
    _, folder = train("cluster=none", "trainer.epochs=1")
    for change, message in (
        ("model.embedding_dim=5", "embedding/embeddings is 8x5 float32 here and 8x20 float32 there"),
        ("checkpoint=none", "checkpoint: is 'none', but resume needs a checkpoint"),
    ):
        with pytest.raises(ConfigError, match=message):
            train("cluster=none", f"resume='{folder.path}'", change, into=folder)
    result, _ = train("cluster=none", f"resume='{folder.path}'", into=folder)  # nothing of it was harmed
    assert result["steps"]["applied"] == 2 * STEPS


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", ["fit", pytest.param("custom_loop", marks=pytest.mark.thorough)])
def test_numbers_that_followed_from_the_data_hold_when_a_run_is_resumed(train, trainer):
    """Also if the data recommends others now."""
    automatic = [f"{key}=auto" for key in FROM_DATA]
    given = [
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", "evaluation=none",
        "data._target_=example_ids.Recommending", "~data.num_train_examples", "~data.num_eval_examples",
        "~data.noise", "~data.num_features", f"trainer={trainer}", "optimizer.learning_rate=0.0001",
        "trainer.steps_per_execution=2",
    ]  # fmt: skip
    result, folder = train(*given, *automatic, "+data.epochs=3")
    assert result["steps"]["applied"] == 3 * 4
    composed = raw_config(*given, *automatic, "+data.epochs=7", "trainer.epochs=4")
    resumed = as_recorded(composed, composed, folder.path, {"trainer.epochs"})
    assert [resumed["data"]["global_batch_size"], resumed["trainer"]["steps_per_epoch"]] == [60, 4]
    assert as_recorded(composed, composed, folder.path, set())["trainer"]["epochs"] == 3
    again = [*given, "data.global_batch_size=60", "trainer.epochs=4", "trainer.steps_per_epoch=4", "+data.epochs=7"]
    result, _ = train(*again, f"resume='{folder.path}'", into=folder)
    assert result["steps"]["applied"] == 4 * 4
    (planned,) = [json.loads(line) for line in folder.metrics.read_text().splitlines() if '"planned"' in line]
    assert [planned[key] for key in FROM_DATA] == [60, 3, 4]


@pytest.mark.thorough
def test_a_run_that_is_going_on_is_left_alone(psrun, tmp_path):
    going_on = Cluster(tmp_path, "cluster=inprocess", *QUICK, many_epochs(20), MOSTLY_WAITING)
    try:
        going_on.wait_for("checkpoint")
        second = psrun("resume", "run", "trainer.epochs=2")
        assert (second.code, "run is running; to follow it: psrun watch " in second.stderr) == (2, True), second.stderr
        done = psrun("predict", "run", "cluster=none")
        assert done.code == 0, done.stderr
        assert going_on.process.poll() is None
        going_on.process.terminate()
        assert going_on.end(within_s=60) == 175
    finally:
        going_on.close()


@pytest.mark.part("runs")
@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        (["tracker=mlflow", "tracker.mlflow.tracking_uri=old"], ["tracker.mlflow.tracking_uri=new"], ["mlflow"]),
        (["tracker=[tensorboard,mlflow]", "tracker.mlflow.tracking_uri=old"], [], ["tensorboard", "mlflow"]),
        ([], ["tracker=[wandb,tensorboard]"], ["wandb", "tensorboard"]),
    ],
)
def test_trackers_of_a_resumed_run(tmp_path, before, now, names):
    folder = recorded(tmp_path / "run", *before)
    first = command_line.composed(before)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "hydra.yaml").write_text(OmegaConf.to_yaml(OmegaConf.masked_copy(first, ["hydra"])))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.masked_copy(first, ["tracker"])))
    composed = command_line.composed([f"resume={folder}", *now])
    assert sorted(composed.tracker) == sorted(names)
    if "mlflow" in names:
        assert composed.tracker.mlflow.tracking_uri == ("new" if now else "old")
    assert composed.hydra.runtime.choices.tracker in (names, *names)
