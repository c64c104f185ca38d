"""What the core says about mistakes of a user: the key, the value, and the next move, as the golden file has them.

One row for each kind of mistake and each group of keys. More mistakes of these kinds, by their keys alone, are in
tests/core/unit/config/test_refused_configurations.py and tests/core/conformance/test_refused_programs.py.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tf_keras
import yaml
from plain_config import plain_config, put
from support import REPOSITORY, run_config, stated

from psrun.checkpoint.storage import Contents
from psrun.cli import command_line, init
from psrun.cluster import placement, strategy
from psrun.cluster.placement import Placed
from psrun.config import composition, parse, targets, topology
from psrun.config.groups import CONF
from psrun.config.topology import Task
from psrun.data.datasets import FashionMnist, Regression
from psrun.errors import ConfigError, Problem
from psrun.launch.losses import RestartPolicy
from psrun.layers import Embedding, EmbeddingCollection, Table
from psrun.models.model import Model
from psrun.optimizers import sparse
from psrun.program import objective
from psrun.program.make_optimizer import make_optimizer
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.tensorflow

# Mistakes that are seen in one argument, before a configuration is composed.
ARGUMENTS = [
    "optimizer.learning_rate=0.1,0.2", "optimizer.learning_rate=0,01", "data.path=a b=c", "seed=[1", "seed",
    "“model=dense”", "—multirun", "model=dense trainer.epochs=2", "model=embeding", "model = dense", "trainer.epochs:3",
    "trainer.epochs==3", "",
]  # fmt: skip
# Options that a run does not have, or without what they need; and words that are no command.
COMMAND_LINES = [
    "--multrun seed=1", "--config-dir nowhere", "hydra.run.dir=afile/run", "fit", "export", "resume a b",
    "predict runs/oj afile", "data=afile", "train seed=1, 2",
    "train runs/oj", "resume nowhere", "model dense", "--epochs 3", "--model dense", "--config-name foo", "GPU=0",
    "MODEL=dense", "model = dense", "trainer.epochs 3", "modle=?", "plan --dry-run", "consistency --help",
    "train cluster.slow_workers={0: 0.05} seed=1",
]  # fmt: skip
# Mistakes that are all reported at once, each with what to write instead.
COMPOSED = {
    "keys that do not exist": [
        "modle=dense", "trainer.epoch=2", "partitioner.num_shards=3", "trainer._target_=mine.loop", "learning_rate=0.1",
        "optimizer.lr=0.1", "optimizer.clipnorm=1",
    ],
    "keys that are added or deleted": ["+seed=3", "++seeds=3", "+model.unit=3", "~seeds", "~model.loss", "~seed=2"],
    "a name that is a path": ["run.name=runs/first"],
    "two choices": ["model=dense", "seed=1", "model=embedding", "seed=x"],
    "choices and values": [
        "model=embeding", "model.width=3", "trainer.steps_per_epoch=abc", "mode=predicts",
        "early_stopping.mode=maximum",
    ],
    "values of several kinds": ["seed=null", "trainer.hooks=3", "cluster.num_workers=0", "trainer.epochs=null",
        "cluster.slow_workers=0.05"],
    "combinations": ["evaluation=validation", "cluster=multi_worker_mirrored"],
    "a run that is not there": ["resume=/nowhere", "seed=x", "model=denes", "predict.formt=csv", "model.width=3"],
}  # fmt: skip
OVERRIDE = "# @package _global_\ndefaults:\n"
# Files below --config-dir with mistakes that are seen before they are composed.
FILES = {
    "bytes": ("model", b"_target_: mine.line\nword: caf\xe9\n"),
    "a list": ("model", b"- 1\n- 2\n"),
    "override without a package": ("experiment", b"defaults:\n  - override /model: dense\n"),
    "override of a typo": ("experiment", f"{OVERRIDE}  - override /model: denes\n".encode()),
    "two overrides": ("experiment", f"{OVERRIDE}  - override /model: cnn\n  - override /model: dense\n".encode()),
}
# Files at places where they have no effect, or another one than their names say.
PLACES = {
    "a folder with the name of a key": ("own/seed/2.yaml", ["seed=2"]),
    "the configuration of psrun": ("own/config.yaml", []),
    "a group without a choice": ("own/mine/a.yaml", ["mine=a"]),
}
# Values of a key, each of which is refused.
VALUES: dict[str, list[Any]] = {
    "mode": ["tarin"],
    "model": ["dense"],
    "seed": ["x", 2**32],
    "trainer.epochs": ["aut", 0, None],
    "trainer.run_eagerly": [True],
    "cluster.slow_workers": [{2: 0.1}, {1: -0.1}, "all"],
    "model._target_": ["psrun.models.model.embeding", "no_such_module.model", 3, "mine.py:model", "json"],
    "model.loss_weights": [[1]],
    "data": [{"_target_": "psrun.data.datasets.HeroFeatures"}],
    "data.global_batch_size": ["atuo", 0],
    "data.label_vocabulary": ["yes", ["a"], ["a", "a"], ["a", 1]],
    "optimizer.learning_rate": [-1, float("nan"), "fast", True, None, {"decay": 0.9}, [0.1, 0.2], "???"],
    "optimizer.epsilon": [[1e-7]],
    "optimizer._target_": ["tf_kears.optimizers.Adam", "tf_keras.optimizers.legacy.Nadam"],
    "early_stopping.metric": ["val_auc"],
    "restore": ["newest", "best"],
    "experiment": ["dlrm", {"seed": 1}],
    "profile.steps": [[100], [-1, 5], ["a", "b"]],
}
RAISES = "{_target_: user_code.raises"
# Choices and keys that are valid alone.
COMBINATIONS = [
    "cluster.replicas_per_worker=4 data.global_batch_size=3 checkpoint=none export.at_end=true",
    "trainer.steps_per_execution=101 trainer.steps_per_epoch=100",
    "consistency=sync trainer.steps_per_execution=5 trainer.prefetch_rows=true trainer.dense_sync_every=2",
    "optimizer=adam optimizer.use_ema=true",
    "model=dense cluster=multi_worker_mirrored trainer=fit data.sharding=file data.visitation=once",
    "model=dense model.loss=mse_ model.metrics=[aucc] model.class_weight=[1,2]",
    f"trainer.hooks='[{RAISES}, every_steps: 1, every_s: 2}}]'",
]
# Callbacks of tf-keras with trainer=fit that do not what they say, with further arguments.
CALLBACKS = {
    "{_target_: TerminateOnNaN}": [],
    "{_target_: ModelCheckpoint, filepath: m.keras}": ["partitioner=fixed_shards"],
    "{_target_: BackupAndRestore, backup_dir: b}": ["checkpoint=epoch"],
    "{_target_: LambdaCallback, on_batch_end: f}": [],
}
MINE = """
def model(source, *, width: int, names: list[str] = (), rate: float | None = None, free=1): return width, rate
"""
TARGETS = [
    "{_target_: mine.model, width: x, names: 3, rate: fast, widht: 2}",
    "{_target_: mine}",
    "{_target_: nowhere.model}",
]
CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}
TF_CONFIGS = {
    "none": None,
    "no JSON": "{cluster",
    "no such worker": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 7}}),
    "one address twice": json.dumps({"cluster": {**CLUSTER, "ps": ["w:1"]}, "task": {"type": "worker", "index": 0}}),
}
SAVED = {"table": {"shape": [8, 2], "dtype": "float32"}}
WIDER = {"table": {"shape": [8, 3], "dtype": "float32"}}
CHECKPOINTS = {
    "shape": Contents("Adagrad", WIDER, {}, [], {}),
    "optimizer": Contents("Adam", SAVED, {}, [], {}),
    "hash": Contents("Adagrad", SAVED, {}, [], {}, hashed_integers={"item": "multiply-shift"}),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("mine", "cutting"):
        sys.modules.pop(name, None)


def written(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument(snapshot, argument):
    (problem,) = composition.problems_of_arguments([argument], sweeps=False).values()
    assert str(problem) == snapshot


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line(monkeypatch, tmp_path, line, says):
    (tmp_path / "afile").touch()
    monkeypatch.setattr("sys.argv", ["psrun", *line.split()])
    says(command_line._dispatch, 0.0)


@pytest.mark.parametrize("case", COMPOSED)
def test_all_mistakes_at_once(monkeypatch, case, says):
    monkeypatch.setattr("sys.argv", ["psrun", "hydra.run.dir=run", *COMPOSED[case]])
    says(command_line.run_experiment, 0.0)


@pytest.mark.parametrize("case", FILES)
def test_a_file(snapshot, tmp_path, case):
    group, content = FILES[case]
    written(tmp_path / "own" / group / "mine.yaml", content)
    (problem,) = composition.problems_of_arguments(["--config-dir", "own", f"{group}=mine"], sweeps=False).values()
    assert stated(ConfigError([problem]), tmp=tmp_path) == snapshot


@pytest.mark.parametrize("case", PLACES)
def test_a_place(snapshot, tmp_path, case):
    name, arguments = PLACES[case]
    written(tmp_path / name, b"metric: auc\n")
    (problem,) = composition.all_problems(["--config-dir", "own", *arguments])
    assert stated(ConfigError([problem]), tmp=tmp_path, conf=CONF) == snapshot


@pytest.mark.parametrize("key", VALUES)
def test_a_value(snapshot, tmp_path, key):
    found = []
    for value in VALUES[key]:
        raw = plain_config()
        put(raw, key, value)
        with pytest.raises(ConfigError) as raised:
            parse.load(raw)
        found.append(stated(raised.value, tmp=tmp_path, psrun=REPOSITORY))
    assert "\n".join(found) == snapshot


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_a_combination(arguments, says):
    says(parse.load, plain_config(*shlex.split(arguments)))


@pytest.mark.parametrize("node", CALLBACKS)
def test_a_callback(node, says):
    callbacks = node.replace("_target_: ", "_target_: tf_keras.callbacks.")
    raw = plain_config("trainer=fit", "checkpoint=none", *CALLBACKS[node], f"trainer.callbacks=[{callbacks}]")
    says(parse.load, raw)


def check_target(node: dict[str, Any]) -> None:
    problems: list[Problem] = []
    targets.read(node, key="model", problems=problems)
    raise ConfigError(problems)


@pytest.mark.parametrize("node", TARGETS)
def test_a_target(tmp_path, node, says):
    written(tmp_path / "mine.py", MINE.encode())
    says(check_target, yaml.safe_load(node))


@pytest.mark.parametrize("case", TF_CONFIGS)
def test_tf_config(case, says):
    says(topology.from_tf_config, TF_CONFIGS[case])


def test_init(tmp_path, says):
    (tmp_path / "afile").touch()
    says(init.main, [str(tmp_path)])


def test_a_folder_that_holds_a_run(tmp_path, says):
    RunFolder.create(tmp_path, raw={}).emit("ended", status="running")
    says(RunFolder.create, tmp_path, raw={})


def test_a_budget_that_is_spent(snapshot):
    error = RestartPolicy(budget=3, first_delay_s=2.0, longest_delay_s=10.0).exhausted(Task("ps", 1), "was killed")
    assert stated(error) == snapshot


@pytest.mark.parametrize("difference", CHECKPOINTS)
def test_a_checkpoint_of_another_model_or_optimizer(difference, says):
    says(Contents("Adagrad", SAVED, {}, [], {}).check, "ckpt-1", CHECKPOINTS[difference])


# -- data


def test_images(tmp_path, says):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (folder / name).write_bytes(b"garbage")
    says(FashionMnist, path=str(folder))


# -- layers, placement, partitioners, optimizers


def collection(**options: Any) -> EmbeddingCollection:
    """A table of five ids."""
    return EmbeddingCollection([Table("a", ("x",), 5, 2)], name="t", **options)


LAYERS = {
    "an option": lambda: Embedding(5, 3, wire="float8"),
    "a combiner": lambda: collection(combiner="average"),
    "an option of an optimizer": lambda: sparse.SparseSGD(momentum=0.9),
}


@pytest.mark.parametrize("mistake", LAYERS)
def test_layers(mistake, says):
    says(LAYERS[mistake])


PLACED = [Placed(f"{name}/embeddings", 0, "ps-0", 10, "model", (3, 1), "float32") for name in "ab"]
PLACEMENTS = {
    "few rows": lambda: placement.check_rows(PLACED, 4, stacked={"b/embeddings"}),
    "memory": lambda: placement.check_memory(PLACED, 19),
}


@pytest.mark.parametrize("mistake", PLACEMENTS)
def test_placement(mistake, says):
    says(PLACEMENTS[mistake])


CUTTING = """
def of(value):
    return lambda shape, dtype: value
"""


def test_a_partitioner(tmp_path, says):
    written(tmp_path / "cutting.py", CUTTING.encode())
    run = run_config("partitioner=custom", "partitioner._target_=cutting.of", "+partitioner.value=[2,2]")
    says(strategy.make_partitioner(run.partitioner), shape=tf.TensorShape([8, 20]), dtype=tf.float32)


@pytest.mark.parametrize("name", ["with_averages", "nothing", "Legacy"])
def test_an_optimizer(name, says):
    says(make_optimizer, run_config(f"optimizer._target_=user_optimizers.{name}"), tf_keras.Sequential())


def test_predictions_of_too_few_classes(says):
    source: Any = Regression()
    source.task = "multiclass"
    source.num_classes = 10
    predicted, label = (tf.TensorSpec((None, width), tf.float32) for width in (3, 1))
    says(objective.check_widths, predicted, label, Model(tf_keras.Sequential()), source)


# -- what the program shows

STEPS = ("model=dense", "~model.hidden_units", "model._target_=user_models.wrong", "optimizer=sgd", "cluster=none")
BUILT = {
    "batch-larger-than-data": ("cluster=none", "data.global_batch_size=501"),
    "nothing-to-evaluate": ("cluster=none", "data.num_eval_examples=0"),
    "stopping-metric-typo": ("cluster=none", "early_stopping.metric=val_acu", "early_stopping.mode=max"),
    "own-step-of-a-loss-each": (*STEPS, "evaluation=none"),
    "loop-idles": ("cluster=none", "model=dense", "trainer=own_loop", "trainer._target_=user_code.idle"),
    "hook-fails": (
        "cluster=none", "evaluation=none", "trainer.hooks=[{_target_: user_code.raises, at: 12, every_epochs: 1}]",
    ),
}  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize("name", BUILT)
def test_mistakes_that_the_program_shows(name, train, says):
    says(train, *BUILT[name], num_workers=1)
