"""Mistakes in a command line and in a configuration are refused by the key that has to change.

What is said: tests/core/contract/test_messages_core.py.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from messages import refused
from plain_config import plain_config, put
from support import raw_config

from psrun.checkpoint.storage import Contents
from psrun.cli import command_line
from psrun.config import composition, parse, targets, topology
from psrun.errors import ConfigError, Problem

ARGUMENTS = {
    "seed=range(1,3)": "seed",
    "model=[dense]": "model",
    "++model=dense": "model",
    "hydra.run.dir=": "hydra.run.dir",
    "data.delimiter=;": "data.delimiter",
    "=3": "=3",
    " ": "an argument is empty",
    "model = dense": "model",
    "train model=dense": "train",
    "data.path=a seed = 3": "data.path",
    "trainer.epochs==3": "trainer.epochs",
    "trainer.epochs:3": "trainer.epochs:3",
    "model dense": "model dense",
    "optimizer.learning_rate=1,05": "optimizer.learning_rate",
    "b.csv”": "b.csv”",
    "run.name=it\u2019s": "run.name",
    "data.path=a b.csv seed=3": "data.path",
    "model=2": "model",
    "model=[]": "model",
    "model={a:1}": "model",
    "model=''": "model",
    "experiment=[a,b]": "experiment",
    "hydra/launcher=2": "hydra/launcher",
    "model=mine": "model",
    "cluster=tpu": "cluster",
    "data=csv": "data",
    "+experiment=smoke": "experiment",
    "model@x=dense": "model",
    "~cluster": "cluster",
    "hydra.searchpath=[file://own]": "hydra.searchpath",
}
COMMAND_LINES = {
    "--config-dir": "--config-dir has no value",
    "--resolve": "add --cfg job",
    "hydra.mode=MULTIRUN": "hydra.mode",
    "++resume=run": "resume",
    "evaluate": "psrun evaluate RUN",
    "resume --cfg job": "psrun resume RUN",
    "predict a b": "takes one run, not 2: a, b",
    "predict a resume=b": "takes one run, not 2: a, resume=b",
    "predict -m a": "predict takes one run",
    "predict a mode=export": "remove mode=export",
    "train runs/x": "psrun resume runs/x",
    "plan smoke": "psrun plan experiment=smoke",
    "resume nowhere seed=x": "resume, seed",
    "export a restore = best": "resume, restore",
    "train --epochs 3": "trainer.epochs=3",
    "model=dense --epochs 3": "trainer.epochs=3",
    "--trainer.epochs 3": "trainer.epochs=3",
    "--sweep seed=1,2": "psrun -m KEY=A,B",
    "--config-name smoke": "--config-name",
    "seed 3": "psrun seed=3",
    "-m --config-dir -r seed=1,2": "--config-dir has no value",
    "--config-path own": "--config-dir FOLDER",
    "--experimental-rerun x": "psrun resume RUN",
    "-m seed=1,2 --cfg job": "Only one of --run, --multirun, --cfg",
    "hydra.run.dir=/proc/run": "hydra.run.dir",
    "run model=dense": "psrun train model=dense",
    "--batch-size=32": "data.global_batch_size=32",
    "--lr 0.1 model=nope": "optimizer.learning_rate=0.1",
    "--gpus 2": "CUDA_VISIBLE_DEVICES",
    "-e 3": "Valid names: --cfg",
    "table_optimizer=rowise_adagrad": "table_optimizer",
    "table_optimizer=ftrl table_optimizer.rate=1": "table_optimizer.rate",
    "table_optimizer.learning_rate=1": "table_optimizer.learning_rate",
    "OMP_NUM_THREADS=3": "OMP_NUM_THREADS",
    "seed= 3 model =dense": "seed, model",
    "--cfg job model=dense model=cnn": "model",
    "--info config trainer.epoch=2": "trainer.epoch",
}
OVERRIDE = "# @package _global_\ndefaults:\n"
FILES = {
    "defaults: dense\n": ("model", "defaults"),
    "defaults: [nope]\n": ("model", "model"),
    "defaults: [override /optimizer: sgd]\n": ("model", "optimizer"),
    f"{OVERRIDE}  - /model: cnn\n": ("experiment", "model"),
    "# @package _global_\nhydra: {searchpath: [x]}\n": ("experiment", "hydra.searchpath"),
    f"{OVERRIDE}  - override model: cnn\n": ("experiment", "model"),
    f"{OVERRIDE}  - override /modle: cnn\n": ("experiment", "modle"),
    f"{OVERRIDE}  - model: cnn\n": ("experiment", "experiment/model"),
    f"{OVERRIDE}  - override /optimizer: [sgd, adagrad]\n": ("experiment", "defaults"),
    f"{OVERRIDE}  - override /model: 2\n": ("experiment", "defaults"),
}
# A file of a user, arguments, and the key. The files are at places where they have no effect, or another one.
PLACES = {
    "a file that Hydra needs": ("own/hydra/job_logging/disabled.yaml", [], "--config-dir"),
    "the configuration of Hydra": ("own/hydra/config.yaml", [], "--config-dir"),
    "a conf within": ("own/conf/model/mine.yaml", ["model=mine"], "model"),
    "a conf here": ("conf/model/mine.yaml", ["model=mine"], "model"),
    "another ending": ("own/model/other.yml", ["model=other"], "model"),
    "one of several choices": ("own/mine/a.yaml", ["+mine=[a,b]"], "mine"),
    "a number as a choice": ("own/mine/a.yaml", ["+mine=[a,2]"], "mine"),
}
# Each value is refused by its key.
VALUES: dict[str, list[Any]] = {
    "cluster": ["local"],
    "nonsense": [1],
    "trainer.epoch": [3],
    "trainer.steps_per_epoch": [1.5, "???"],
    "cluster.placement": ["gredy"],
    "model.from_logits": ["maybe"],
    "export.best": [True],
    "seed": [-1],
    "trainer.epochs": ["many", 1.5],
    "profile.steps": [100],
    "trainer.steps_per_execution": ["ten", 0],
    "trainer.dense_sync_every": [11],
    "cluster.num_workers": [0],
    "cluster.num_ps": [0],
    "cluster.replicas_per_worker": [0],
    "data.visitation": ["twice"],
    "data.label_vocabulary": [[], ["no", 1], [0.5, 1.5]],
    "model.unit": [3],
    "model.embedding_dim": ["wide"],
    "model._partial_": [True],
    "model.weighted_metrics": [["AUC"]],
    "predict.keep": [["id", "id"]],
    "system.every_s": [0, "often"],
}
RAISES = "{_target_: user_code.raises"
# Choices and keys that are valid alone.
COMBINATIONS = {
    "cluster=none optimizer=sparse_sgd optimizer.staleness_aware=true": "optimizer.staleness_aware",
    "optimizer=sparse_sgd optimizer.delay_compensation=-1": "optimizer.delay_compensation",
    "table_optimizer=ftrl table_optimizer.delay_compensation=0.1": "table_optimizer.delay_compensation",
    "cluster=none table_optimizer=ftrl table_optimizer.staleness_aware=true": "table_optimizer.staleness_aware",
    "table_optimizer=ftrl table_optimizer.learning_rate=fast": "table_optimizer.learning_rate",
    "table_optimizer=ftrl table_optimizer.global_clipnorm=1": "table_optimizer.global_clipnorm",
    "table_optimizer=ftrl table_optimizer.use_ema=true": "table_optimizer.use_ema",
    "table_optimizer=adam table_optimizer._target_=keras.optimizers.Adam": "table_optimizer._target_",
    "cluster=mirrored consistency=bounded_delay optimizer=sparse_sgd optimizer.delay_compensation=0.1": (
        "consistency, optimizer.delay_compensation"
    ),
    "consistency=sync cluster.replicas_per_worker=2 consistency.backup_workers=2": (
        "consistency.backup_workers, cluster.replicas_per_worker"
    ),
    "consistency=sync optimizer=sparse_sgd optimizer.staleness_aware=true": "optimizer.staleness_aware",
    "consistency=sync consistency.backup_workers=-1": "consistency.backup_workers",
    "consistency=sync consistency.min_workers=3": "consistency.min_workers",
    "consistency=sync consistency.tolerance=2": "consistency.tolerance",
    "consistency=k_async consistency.gradients=3": "consistency.gradients",
    "consistency=gba consistency.gradients=0": "consistency.gradients",
    "consistency=gba consistency.tolerance=-1": "consistency.tolerance",
    "consistency=gba consistency.decay=1.5": "consistency.decay",
    "consistency=gba trainer.steps_per_execution=4": "trainer.steps_per_execution",
    "consistency=hybrid consistency.tables=sync": "consistency.tables",
    "consistency=scheduled 'consistency.schedule={0: sink}'": "consistency.schedule[0]",
    "consistency=scheduled 'consistency.schedule={0: {kind: gba, tolerances: 3}}'": (
        "consistency.schedule[0].tolerances"
    ),
    "consistency=scheduled 'consistency.schedule={5: sync}'": "consistency.schedule",
    "consistency=scheduled 'consistency.schedule={0: sync, 20: gba}' trainer.epochs=2 trainer.steps_per_epoch=10": (
        "consistency.schedule"
    ),
    "consistency=scheduled 'consistency.schedule={0: sync, 5: async}'": "consistency.schedule",
    "consistency=scheduled 'consistency.schedule={0: sync, 5: {kind: k_async, gradients: 3}}'": "consistency.gradients",
    "consistency=hybrid consistency.dense=sync consistency.tolerance=2": "consistency.tolerance",
    "consistency=hybrid consistency.dense=k_async": "consistency.gradients",
    "consistency=hybrid consistency.dense=k_async consistency.gradients=5": "consistency.gradients",
    "consistency=sync consistency.min_workers=2 consistency.backup_workers=1": "consistency.min_workers",
    "consistency=sync cluster=tf_config trainer.steps_per_epoch=null": "trainer.steps_per_epoch",
    "optimizer=sparse_sgd optimizer.staleness_aware=true trainer.dense_sync_every=2": "optimizer.staleness_aware",
    "cluster=local evaluation=sidecar checkpoint=none trainer=fit "
    "trainer.callbacks='[{_target_: tf_keras.callbacks.EarlyStopping}]'": "evaluation, trainer.callbacks[0]",
    "cluster=local evaluation=sidecar export.best=true": "export.best",
    "cluster=none evaluation=distributed export.best=true": "evaluation, export.best",
    "cluster=inprocess evaluation=sidecar_thread": "evaluation",
    "cluster=none checkpoint.best_metric=val_loss": "checkpoint.best_mode",
    "cluster=local evaluation=sidecar_thread cluster.num_workers=1": "cluster.num_workers",
    "early_stopping.metric=loss early_stopping.mode=min cluster=multi_worker_mirrored trainer=fit "
    "evaluation=validation": "early_stopping.metric",
    "trainer=own_loop cluster=local evaluation=sidecar evaluation.every=2": "trainer._target_, evaluation.every",
    "trainer=own_loop trainer._target_=user_code.tutorials": "trainer._target_",
    "trainer=own_loop trainer._target_=user_code.tutorial trainer.clips=1": "trainer.clips",
    "trainer=fit trainer._target_=user_code.plain": "trainer",
    "predict.path=p.csv.gz predict.keep=[a,b,a]": "predict.format, predict.keep",
    "predict.format=xml predict.keep=id": "predict.format, predict.keep",
    "model=dense model.loss=own.loss model.metrics='{click: [mae, recal]}' model.class_weight='{0: 1, 1: much}'": (
        "model.loss, model.metrics.click[1], model.class_weight.1"
    ),
    "model=dense model.loss='{click: mze}'": "model.loss.click",
    "model=dense model.loss=3": "model.loss",
    "model=dense model.loss='{_target_: sample_weights.off_by_more, power_: 2}'": "model.loss.power_",
    "partitioner._target_=cutting.by_rows": "partitioner",
    "model=dense cluster=multi_worker_mirrored trainer=fit data.sharding=off data.visitation=once": "data.sharding",
    "model=dense cluster=multi_worker_mirrored trainer=fit data.sharding=files": "data.sharding",
    "cluster=mirrored data.sharding=data": "data.sharding",
    "cluster=inprocess data.sharding=data": "data.sharding",
}
# Callbacks of tf-keras with trainer=fit that do not what they say, with further arguments.
CALLBACKS = {
    "{_target_: ModelCheckpoint, filepath: m, save_freq: 20}": ([], "trainer.callbacks[0]"),
    "{_target_: BackupAndRestore, backup_dir: b, save_before_preemption: true}": ([], "trainer.callbacks[0]"),
    "{_target_: BackupAndRestore, backup_dir: b, save_freq: 5}": ([], "trainer.callbacks[0]"),
    "{_target_: BackupAndRestore, backup_dir: c, save_freq: 5}": (["cluster=none"], "trainer.callbacks[0]"),
    "{_target_: BackupAndRestore, backup_dir: 'b[1]'}": (["cluster=none"], "trainer.callbacks[0].backup_dir"),
    "{_target_: experimental.BackupAndRestore, backup_dir: b}": (
        ["checkpoint=epoch", "cluster=none"],
        "trainer.callbacks[0]",
    ),
    "{_target_: LearningRateScheduler, schedule: f}": (
        ["optimizer.learning_rate={_target_: tf_keras.optimizers.schedules.CosineDecay}"],
        "trainer.callbacks[0]",
    ),
    "{_target_: EarlyStopping, restore_best_weights: true, monitor: loss}": (
        ["checkpoint=epoch"],
        "trainer.callbacks[0]",
    ),
}
MINE = """
nothing = None
def model(source, *, width: int, free=1): return width
def fails(): return 1 / 0
alias = model
"""
TARGETS = {
    "{_target_: mine.model}": "model.width",
    "{_target_: mine.modell}": "model._target_",
    "{_target_: mine.nothing}": "model._target_",
    "{_target_: mine model}": "model._target_",
    "{_target_: mine.alias, width: 1, source: 1}": "model.source",
    "{_target_: mine.alias, width: 1, widht: 1}": "model",
    "{_target_: mine.fails}": "model",
}
CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}
WORKER = {"type": "worker", "index": 0}
TF_CONFIGS = {
    "no object": ([], "TF_CONFIG"),
    "no task": ({"cluster": CLUSTER}, "TF_CONFIG.task"),
    "no job": ({"cluster": CLUSTER, "task": {"type": "boss", "index": 0}}, "TF_CONFIG.task.type"),
    "a second chief": ({"cluster": CLUSTER, "task": {"type": "chief", "index": 1}}, "TF_CONFIG.task.index"),
    "no index": ({"cluster": CLUSTER, "task": {"type": "ps", "index": "x"}}, "TF_CONFIG.task.index"),
    "no port": (
        {"cluster": {**CLUSTER, "ps": ["nowhere"]}, "task": WORKER},
        "TF_CONFIG.cluster.ps[0], TF_CONFIG.cluster.ps",
    ),
    "no list": (
        {"cluster": {**CLUSTER, "ps": "p:1"}, "task": WORKER},
        "TF_CONFIG.cluster.ps, TF_CONFIG.cluster.ps",
    ),
    "another job": ({"cluster": {**CLUSTER, "boss": ["b:1"]}, "task": WORKER}, "TF_CONFIG.cluster.boss"),
    "no servers": ({"cluster": {"worker": ["w:1"]}, "task": WORKER}, "TF_CONFIG.cluster.ps"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine", None)


def written(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument(argument):
    (problem,) = composition.problems_of_arguments([argument], sweeps=False).values()
    assert problem.key == ARGUMENTS[argument] or str(problem).startswith(ARGUMENTS[argument])


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line(monkeypatch, line):
    monkeypatch.setattr("sys.argv", ["psrun", *line.split()])
    refused(COMMAND_LINES[line], command_line._dispatch, 0.0)


@pytest.mark.part("runs")
def test_a_sweep_that_is_not_there(monkeypatch):
    monkeypatch.setattr("sys.argv", ["psrun", "resume", "-m", "nowhere"])
    refused("resume", command_line._dispatch, 0.0)


@pytest.mark.parametrize("content", FILES)
def test_a_file(tmp_path, content):
    group, key = FILES[content]
    written(tmp_path / "own" / group / "mine.yaml", content)
    (problem,) = composition.problems_of_arguments(["--config-dir", "own", f"{group}=mine"], sweeps=False).values()
    assert problem.key == key


@pytest.mark.parametrize("case", PLACES)
def test_a_place(tmp_path, case):
    name, arguments, key = PLACES[case]
    (tmp_path / "own").mkdir()
    written(tmp_path / name, "metric: auc\n")
    own = ["--config-dir", "own"] if name.startswith("own") else []
    (problem,) = composition.all_problems([*own, *arguments])
    assert str(problem).startswith(f"{key}: ")


@pytest.mark.parametrize("key", VALUES)
def test_a_value(key):
    for value in VALUES[key]:
        raw = plain_config()
        put(raw, key, value)
        refused(key, parse.load, raw)


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_a_combination(arguments):
    refused(COMBINATIONS[arguments], parse.load, plain_config(*shlex.split(arguments)))


@pytest.mark.parametrize("node", CALLBACKS)
def test_a_callback(node):
    arguments, key = CALLBACKS[node]
    callbacks = node.replace("_target_: ", "_target_: tf_keras.callbacks.")
    raw = plain_config("trainer=fit", "checkpoint=none", *arguments, f"trainer.callbacks=[{callbacks}]")
    refused(key, parse.load, raw)


def called(node: dict[str, Any]) -> None:
    """Checks a target without importing it, and if nothing is wrong, calls it."""
    problems: list[Problem] = []
    target = targets.read(node, key="model", problems=problems)
    if problems:
        raise ConfigError(problems)
    targets.called(target, source=None)


@pytest.mark.parametrize("node", TARGETS)
def test_a_target(tmp_path, node):
    written(tmp_path / "mine.py", MINE)
    refused(TARGETS[node], called, yaml.safe_load(node))


@pytest.mark.parametrize("case", TF_CONFIGS)
def test_tf_config(case):
    value, keys = TF_CONFIGS[case]
    refused(keys, topology.from_tf_config, json.dumps(value))


@pytest.mark.parametrize("hook", [
    ("user_code.Notes", "trainer.hooks[0]"),
    (f"{RAISES}, every_step: 1}}", "trainer.hooks[0].every_step, trainer.hooks[0]"),
    (f"{RAISES}, every_steps: 0}}", "trainer.hooks[0].every_steps"),
])  # fmt: skip
def test_a_hook(hook):
    text, keys = hook
    refused(keys, parse.load, raw_config(f"trainer.hooks=[{text}]"))


def test_sharding_that_yaml_reads_as_false_is_off():
    raw = raw_config("cluster=multi_worker_mirrored", "trainer=fit", "model=dense")
    raw["data"]["sharding"] = False
    assert parse.load(raw).data.sharding == "off"


SAVED = {"table": {"shape": [8, 2], "dtype": "float32"}}
OTHER_TYPE = {"table": {"shape": [8, 2], "dtype": "float16"}}
CHECKPOINTS = [
    (Contents("Adagrad", OTHER_TYPE, {}, [], {}), "model"),
    (Contents("Adagrad", {**SAVED, "b": SAVED["table"]}, {}, [], {}), "model"),
    (Contents("Adagrad", SAVED, {"table/accumulator": SAVED["table"]}, [], {}), "optimizer"),
]


@pytest.mark.parametrize(("contents", "key"), CHECKPOINTS)
def test_a_checkpoint_of_another_model_or_optimizer(contents, key):
    refused(key, Contents("Adagrad", SAVED, {}, [], {}).check, "ckpt-1", contents)


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("seed=1..3", "; to run each of them, add -m and write seed=1,2,3"),
        ("cluster.num_ps=2-4", "; to run each of them, add -m and write cluster.num_ps=2,3,4"),
        ("seed=3..1", ""),
        ("seed=1..1000", ""),
    ],
)
def test_a_range_in_place_of_an_integer_names_how_to_sweep(argument, advice):
    with pytest.raises(ConfigError) as raised:
        parse.load(plain_config(argument))
    key, _, value = argument.partition("=")
    assert Problem(key, f"is '{value}', must be an integer{advice}") in raised.value.problems
