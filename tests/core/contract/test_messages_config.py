"""What psrun says about mistakes of a command line and of a configuration: each text is in the golden file."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plain_config import plain_config, put
from support import REPOSITORY, stated

from psrun.cli import dispatch, hydra_app, init
from psrun.config import compose, overrides, parse, targets, topology
from psrun.config.groups import CONF
from psrun.errors import ConfigError, Problem
from psrun.runs.sweeps import proposals
from psrun.runs.sweeps.hydra_search import Space
from psrun.tables import commands as data_commands

# Mistakes that are seen in one argument, before a configuration is composed.
ARGUMENTS = [
    # Values that Hydra's grammar does not have, or that belong to a sweep.
    "optimizer.learning_rate=0.1,0.2", "model=dense,cnn", "seed=range(1,3)", "data.path=a,b.csv", "data.path=a b=c",
    "data.delimiter=;", "seed=[1", "seed", "=3", "optimizer.learning_rate=0,01",
    # What a page or a word processor makes of quotes and dashes, and several arguments in one quotation.
    "“model=dense”", "data.path=“a", "b.csv”", "run.name=it\u2019s", "—multirun", "model=dense trainer.epochs=2",
    "data.path=a b.csv seed=3",
    # No name of a choice.
    "model=2", "model=null", "model=true", "model=[dense]", "model=[]", "model={a:1}", "model=''", "experiment=[a,b]",
    "hydra/launcher=2",
    # Choices that do not exist.
    "model=embeding", "model=mine", "cluster=tpu", "data=csv",
    # A group has one choice, in one place.
    "+experiment=smoke", "++model=dense", "model@x=dense", "~tracker",
    # A run may have several trackers.
    "tracker=[tensorbord,mlflow]", "tracker=[mlflow,mlflow]", "tracker=[]", "tracker=[[mlflow]]",
    # Keys of Hydra's.
    "hydra.searchpath=[file://own]", "hydra.run.dir=",
]  # fmt: skip

# Options that a run does not have, or without what they need; and words that are no command.
COMMAND_LINES = [
    "--multrun seed=1", "--config-dir", "-m --config-dir -r seed=1,2", "--resolve", "--config-path own",
    "--experimental-rerun x", "-m trainer.epochs", "-m seed=1,2 --cfg job", "hydra.mode=MULTIRUN", "modle=?",
    "--config-dir nowhere", "hydra.run.dir=afile/run", "hydra.run.dir=/proc/run", "reprot", "-sc install=tcsh",
    # Words and options that other programs have.
    "train", "run model=dense", "export runs/oj", "predict runs/oj predict.path=x.csv", "evaluate", "resume runs/x",
    "plan model=dlrm", "model dense", "--epochs 3", "--batch-size=32", "--lr 0.1 model=nope", "--model dense",
    "--gpus 2", "-e 3", "GPU=0", "OMP_NUM_THREADS=3", "model = dense", "seed= 3 model =dense",
    "--cfg job model=dense model=cnn", "--info config trainer.epoch=2", "++resume=run",
    # A search.
    "sweep.search=tpe", "-m sweep.search=grid sweep.metric=loss sweep.mode=min",
    "-m sweep.search=grid sweep.metric=loss sweep.mode=min sweep.halving.factor=3 trainer.epochs=9 cluster.num_ps=1,2",
    "-m sweep.search=grid sweep.metric=loss sweep.mode=min sweep.halving.factor=2 trainer.epochs=1 cluster.num_ps=1,2",
    "-m sweep.search=grid optimizer.learning_rate=0.1,0.2",
    "-m sweep.search=grid sweep.metric=loss sweep.mode=min sweep.halving.factor=3 trainer.epochs=9,18,27",
    "-m sweep.search=tpe,random sweep.num_trials=2,3 sweep.metric=loss sweep.mode=min seed=1,2",
    "-m sweep.search=random sweep.num_trials=2 sweep.metric=loss sweep.mode=min optimizer.learning_rate=interval(1,inf)"
    " trainer.epochs=range(5,1) seed=1,2 cluster.num_ps=1,2 cluster.num_ps=3,4",
]  # fmt: skip

# Mistakes that are all reported at once, each with what to write instead.
COMPOSED = {
    "keys that do not exist": [
        "modle=dense", "trainer.epoch=2", "partitioner.num_shards=3", "trainer._target_=mine.loop", "learning_rate=0.1",
        "optimizer.lr=0.1", "metric=auc", "data.path=x.csv", "model.loss_weights=[1]",
    ],
    "keys below null": ["data=table", "data.path=x.csv", "data.label=y", "data.features.x.dtype=int64"],
    "keys that are added or deleted": ["+seed=3", "++seeds=3", "+model.unit=3", "~seeds", "~model.loss", "~seed=2"],
    "a name that is a path": ["run.name=runs/first"],
    "two choices": ["model=two_tower", "seed=1", "model=wide_deep", "seed=x"],
    "choices and values": [
        "model=embeding", "model.width=3", "trainer.steps_per_epoch=abc", "mode=predicts",
        "early_stopping.mode=maximum",
    ],
    "values of several kinds": ["seed=null", "trainer.hooks=3", "cluster.num_workers=0", "trainer.epochs=null"],
    "combinations": ["evaluation=validation", "cluster=multi_worker_mirrored"],
    "two trackers": ["tracker=mlflow", "tracker=wandb"],
    "keys of trackers": [
        "tracker=mlflow", "tracker.tracking_uri=x", "tracker.mlflow.uri=x", "tracker.wandb.mode=online",
        "tracker.x.y=1",
    ],
    "trackers and a profile": [
        "tracker=[none,wandb]", "tracker.wandb.artifacts=[exprt]", "profile.steps=[120,100]",
    ],
    "a run that is not there": ["resume=/nowhere", "seed=x", "model=denes", "predict.formt=csv", "model.width=3"],
    "a value that cannot be read": ["data=table", "data.path=a[1].csv", "data.label=y"],
}  # fmt: skip

OVERRIDE = "# @package _global_\ndefaults:\n"
# Files below --config-dir with mistakes that are seen before they are composed.
FILES = {
    "bytes": ("model", b"_target_: mine.line\nword: caf\xe9\n"),
    "a list": ("model", b"- 1\n- 2\n"),
    "defaults as text": ("model", b"defaults: dense\n"),
    "no such choice within": ("model", b"defaults: [nope]\n"),
    "override of another place": ("model", b"defaults: [override /optimizer: sgd]\n"),
    "override without a package": ("experiment", b"defaults:\n  - override /model: dense\n"),
    "override of a typo": ("experiment", f"{OVERRIDE}  - override /model: denes\n".encode()),
    "override of a relative group": ("experiment", f"{OVERRIDE}  - override model: cnn\n".encode()),
    "override of no group": ("experiment", f"{OVERRIDE}  - override /modle: cnn\n".encode()),
    "a second choice": ("experiment", f"{OVERRIDE}  - /model: cnn\n".encode()),
    "a choice within": ("experiment", f"{OVERRIDE}  - model: cnn\n".encode()),
    "two overrides": ("experiment", f"{OVERRIDE}  - override /model: cnn\n  - override /model: dense\n".encode()),
    "an override of several": ("experiment", f"{OVERRIDE}  - override /optimizer: [sgd, adagrad]\n".encode()),
    "an item of another kind": ("experiment", f"{OVERRIDE}  - override /model: 2\n".encode()),
    "a tracker without its place": ("tracker", b"kind: mlflow\nexperiment: mine\n"),
    "a search path": ("experiment", b"# @package _global_\nhydra: {searchpath: [x]}\n"),
}

# Files at places where they have no effect, or another one than their names say.
PLACES = {
    "a folder with the name of a key": ("own/seed/2", ["seed=2"]),
    "a file that Hydra needs": ("own/hydra/job_logging/disabled", []),
    "the configuration of Hydra": ("own/hydra/config", []),
    "the configuration of psrun": ("own/config", []),
    "a conf within": ("own/conf/model/mine", ["model=mine"]),
    "a conf here": ("conf/model/mine", ["model=mine"]),
    "another ending": ("own/model/other.yml", ["model=other"]),
    "a group without a choice": ("own/mine/a", ["mine=a"]),
    "one of several choices": ("own/mine/a", ["+mine=[a,b]"]),
    "a number as a choice": ("own/mine/a", ["+mine=[a,2]"]),
}

# Values of a key, each of which is refused.
VALUES: dict[str, list[Any]] = {
    "mode": ["tarin"],
    "model": ["dense"],
    "cluster": ["local"],
    "data": ["table", {"_target_": "psrun.data.features.HeroFeatures"}],
    "seed": ["x", -1, 2**32],
    "nonsense": [1],
    "trainer.epoch": [3],
    "trainer.epochs": ["many", "aut", 1.5, 0, None],
    "trainer.steps_per_epoch": [1.5, "???"],
    "trainer.steps_per_execution": ["ten", 0],
    "trainer.dense_sync_every": [11],
    "trainer.run_eagerly": [True],
    "cluster.num_workers": [0],
    "cluster.num_ps": [0],
    "cluster.placement": ["gredy"],
    "cluster.replicas_per_worker": [0],
    "cluster.slow_workers": [{2: 0.1}, {1: -0.1}, "all"],
    "model.unit": [3],
    "model.embedding_dim": ["wide"],
    "model._target_": ["psrun.models.embedding.embeding", "no_such_module.model", 3, "mine.py:model", "json"],
    "model._partial_": [True],
    "model.from_logits": ["maybe"],
    "model.loss_weights": [[1]],
    "model.weighted_metrics": [["AUC"]],
    "data.global_batch_size": ["atuo", 0],
    "data.visitation": ["twice"],
    "data.label_vocabulary": ["yes", ["a"], ["a", "a"], ["a", 1]],
    "optimizer.learning_rate": [-1, float("nan"), "fast", True, None, {"decay": 0.9}, [0.1, 0.2], "???"],
    "optimizer.epsilon": [[1e-7]],
    "optimizer._target_": ["tf_kears.optimizers.Adam", "keras.optimizers.Adam"],
    "early_stopping.metric": ["val_auc"],
    "sweep.mode": ["max"],
    "sweep.search": ["bayes"],
    "sweep.num_trials": [0, 3],
    "sweep.halving.factor": [1, 3],
    "sweep.halving": [3],
    "restore": ["newest", "best"],
    "predict.path": ["predictions.txt"],
    "predict.keep": [["id", "id"]],
    "export.best": [True],
    "experiment": ["dlrm", {"seed": 1}],
    "slurm": [{"time": 1}],
    "tracker": [
        "mlflow",
        {},
        {"kind": "mlflow", "tracking_uri": "x", "experiment": "y"},
        {"mlflow": {"kind": "mlflo"}},
    ],
    "tracker.wandb": [
        {"kind": "wandb", "project": "p", "entity": None, "artifacts": [], "mode": "onlin"},
        {"_target_": "psrun.results.events.Sink"},
    ],
    "profile.steps": [100, [100], [-1, 5], ["a", "b"]],
    "system.every_s": [0, "often"],
}

# Choices and keys that are valid alone.
COMBINATIONS = [
    "sweep.search=tpe mode=plan",
    "sweep.search=grid sweep.num_trials=3 sweep.metric=val_loss sweep.mode=min sweep.halving.factor=3 checkpoint=none"
    " evaluation=none trainer.epochs=auto",
    "sweep.search=cmaes sweep.num_trials=9 sweep.metric=loss sweep.mode=min sweep.halving.factor=3 trainer.epochs=9",
    "cluster=none data.visitation=dynamic optimizer=sparse_sgd optimizer.staleness_aware=true",
    "cluster.replicas_per_worker=4 data.global_batch_size=3 checkpoint=none export.at_end=true",
    "trainer.steps_per_execution=101 trainer.steps_per_epoch=100",
    "optimizer=sparse_sgd optimizer.delay_compensation=-1",
    "cluster=mirrored consistency=bounded_delay optimizer=sparse_sgd optimizer.delay_compensation=0.1",
    "consistency=sync trainer.steps_per_execution=5 trainer.prefetch_rows=true trainer.dense_sync_every=2",
    "consistency=sync data.visitation=dynamic cluster.replicas_per_worker=2 consistency.backup_workers=2",
    "consistency=sync optimizer=sparse_sgd optimizer.staleness_aware=true",
    "consistency=sync consistency.backup_workers=-1",
    "consistency=sync consistency.min_workers=3",
    "consistency=sync consistency.min_workers=2 consistency.backup_workers=1",
    "consistency=sync cluster=tf_config trainer.steps_per_epoch=null",
    "optimizer=sparse_sgd optimizer.staleness_aware=true trainer.dense_sync_every=2",
    "optimizer=adam optimizer.use_ema=true",
    "data=table data.path=/rows/train-*.csv data.eval_path=/rows/eval.csv data.label=y",
]

# Callbacks of tf-keras with trainer=fit that do not what they say, with further arguments.
CALLBACKS = {
    "{_target_: TerminateOnNaN}": [],
    "{_target_: ModelCheckpoint, filepath: m, save_freq: 20}": [],
    "{_target_: ModelCheckpoint, filepath: m.keras}": ["partitioner=fixed_shards"],
    "{_target_: BackupAndRestore, backup_dir: b, save_before_preemption: true}": [],
    "{_target_: BackupAndRestore, backup_dir: b, save_freq: 5}": [],
    "{_target_: BackupAndRestore, backup_dir: c, save_freq: 5}": ["cluster=none"],
    "{_target_: BackupAndRestore, backup_dir: 'b[1]'}": ["cluster=none"],
    "{_target_: BackupAndRestore, backup_dir: b}": ["checkpoint=epoch"],
    "{_target_: experimental.BackupAndRestore, backup_dir: b}": ["checkpoint=epoch", "cluster=none"],
    "{_target_: LambdaCallback, on_batch_end: f}": [],
    "{_target_: LearningRateScheduler, schedule: f}": [
        "optimizer.learning_rate={_target_: tf_keras.optimizers.schedules.CosineDecay}"
    ],
    "{_target_: EarlyStopping, restore_best_weights: true, monitor: loss}": ["checkpoint=epoch"],
}

MINE = """
nothing = None
def model(source, *, width: int, names: list[str] = (), rate: float | None = None, free=1): return width, rate
def fails(): return 1 / 0
alias = model
"""
TARGETS = [
    "{_target_: mine.model}",
    "{_target_: mine.model, width: x, names: 3, rate: fast, widht: 2}",
    "{_target_: mine.modell}",
    "{_target_: mine.nothing}",
    "{_target_: mine}",
    "{_target_: mine model}",
    "{_target_: mine.alias, width: 1, source: 1}",
    "{_target_: mine.alias, width: 1, widht: 1}",
    "{_target_: mine.fails}",
    "{_target_: nowhere.model}",
]

CLUSTER = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}
WORKER = {"type": "worker", "index": 0}
TF_CONFIGS = {
    "none": None,
    "no JSON": "{cluster",
    "no object": "[]",
    "no task": {"cluster": CLUSTER},
    "no such worker": {"cluster": CLUSTER, "task": {"type": "worker", "index": 7}},
    "no job": {"cluster": CLUSTER, "task": {"type": "boss", "index": 0}},
    "a second chief": {"cluster": CLUSTER, "task": {"type": "chief", "index": 1}},
    "no index": {"cluster": CLUSTER, "task": {"type": "ps", "index": "x"}},
    "one address twice": {"cluster": {**CLUSTER, "ps": ["w:1"]}, "task": WORKER},
    "no port": {"cluster": {**CLUSTER, "ps": ["nowhere"]}, "task": WORKER},
    "no list": {"cluster": {**CLUSTER, "ps": "p:1"}, "task": WORKER},
    "another job": {"cluster": {**CLUSTER, "boss": ["b:1"]}, "task": WORKER},
    "no servers": {"cluster": {"worker": ["w:1"]}, "task": WORKER},
    "two dispatchers": {"cluster": {**CLUSTER, "data_dispatcher": ["d:1", "d:2"]}, "task": WORKER},
    "no such data worker": {
        "cluster": {**CLUSTER, "data_worker": ["d:1"]},
        "task": {"type": "data_worker", "index": 3},
    },
}

INSPECTIONS = [
    "rows.csv", "rows.csv --label liked", "rows.csv --delimiter ; --label like", "rows.csv --delimiter ;;",
    "rows.csv --encoding latin-x", "headless.csv --label y", "constant.csv --label y", "weighted.csv --weight ws",
    "weighted.csv --label w --weight w", "weighted.csv --weight word", "rows.tfrecord", "none.csv",
    "part-*.csv --label y",
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine", None)


def written(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_an_argument(snapshot, arguments):
    problems = overrides.problems([arguments], sweeps=False)
    assert "\n".join(map(str, problems.values())) == snapshot


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line(monkeypatch, tmp_path, line, says):
    (tmp_path / "afile").touch()
    monkeypatch.setattr("sys.argv", ["psrun", *line.split()])
    says(dispatch._dispatch, 0.0)


@pytest.mark.parametrize("case", COMPOSED)
def test_all_mistakes_at_once(monkeypatch, case, says):
    monkeypatch.setattr("sys.argv", ["psrun", "hydra.run.dir=run", *COMPOSED[case]])
    says(hydra_app.run, 0.0)


@pytest.mark.parametrize("case", FILES)
def test_a_file(snapshot, tmp_path, case):
    group, content = FILES[case]
    written(tmp_path / "own" / group / "mine.yaml", content)
    (problem,) = overrides.problems(["--config-dir", "own", f"{group}=mine"], sweeps=False).values()
    assert stated(ConfigError([problem]), tmp=tmp_path) == snapshot


@pytest.mark.parametrize("case", PLACES)
def test_a_place(snapshot, tmp_path, case):
    name, arguments = PLACES[case]
    written(tmp_path / (name if "." in name else f"{name}.yaml"), b"metric: auc\n")
    (tmp_path / "own").mkdir(exist_ok=True)
    own = ["--config-dir", "own"] if name.startswith("own") else []
    (problem,) = compose.all_problems([*own, *arguments])
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


def called(node: dict[str, Any]) -> None:
    """Checks a target without importing it, and if nothing is wrong, calls it."""
    problems: list[Problem] = []
    target = targets.read(node, key="model", problems=problems)
    if problems:
        raise ConfigError(problems)
    targets.called(target, source=None)


@pytest.mark.parametrize("node", TARGETS)
def test_a_target(tmp_path, node, says):
    written(tmp_path / "mine.py", MINE.encode())
    says(called, yaml.safe_load(node))


@pytest.mark.parametrize("case", TF_CONFIGS)
def test_tf_config(case, says):
    value = TF_CONFIGS[case]
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    says(topology.from_tf_config, text)


@pytest.mark.parametrize("arguments", INSPECTIONS)
def test_data_inspect(tmp_path, arguments, says):
    for name, content in {
        "rows.csv": "a;liked\n1;0\n2;1\n",
        "weighted.csv": "w,word\n1,a\n2,b\n",
        "headless.csv": "0.5,7\n1,0\n2,1\n",
        "constant.csv": "x,y\n1,1\n2,1\n",
        "rows.tfrecord": "x",
        "part-a.csv": "x,y\n1,0\n2,1\n",
        "part-b.csv": "x\n1\n2\n",
    }.items():
        written(tmp_path / name, content.encode())
    says(data_commands.main, ["inspect", *arguments.split()])


def test_init(tmp_path, says):
    (tmp_path / "afile").touch()
    says(init.main, [str(tmp_path)])


# What a search cannot vary, by its method.
SPACES = {
    "a grid of ranges": ("grid", ["optimizer.learning_rate=interval(0.1,1)", "seed=1,2"]),
    "cmaes over words": ("cmaes", ["model=dense,cnn", "optimizer.learning_rate=interval(0.1,1)"]),
    "cmaes over one key": ("cmaes", ["optimizer.learning_rate=interval(0.1,1)"]),
    "a range that ends where it begins": (
        "tpe",
        ["optimizer.learning_rate=interval(1,1)", "data.global_batch_size=32"],
    ),
    "a logarithmic range from zero": ("random", ["optimizer.learning_rate=tag(log,interval(0,1))"]),
    "seeds alone": ("tpe", ["seed=1,2,3"]),
}


@pytest.mark.parametrize("space", SPACES)
def test_what_a_search_cannot_vary(space, snapshot):
    method, arguments = SPACES[space]
    parameters = Space.of(arguments, method, None).parameters
    assert stated(ConfigError(proposals.problems(method, parameters))) == snapshot
