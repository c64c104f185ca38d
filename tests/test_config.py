"""The configuration: every problem is told, at once, by key, and without TensorFlow."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
from support import raw_config, run_config

from psrun import choices, loading
from psrun.errors import ConfigError

FIT = ("trainer=fit", "evaluation=none")


def problems(raw) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        loading.load(raw)
    return {problem.key: problem.message for problem in raised.value.problems}


def changed(*path: str, value, overrides: tuple[str, ...] = ()):
    raw = copy.deepcopy(raw_config(*overrides))
    node = raw
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return raw


@pytest.mark.parametrize("group", choices.KINDS)
def test_every_choice_of_every_group_loads(group):
    for kind, cls in choices.KINDS[group].items():
        needed = ("trainer=fit",) if kind in ("validation", "multi_worker_mirrored") else ()
        needed = ("cluster=local",) if kind.startswith("sidecar") else needed
        loaded = run_config(f"{group}={kind}", *needed)
        assert type(getattr(loaded, group)) is cls


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("trainer", "epoch"), 3, "Did you mean 'epochs'?"),
        (("trainer", "epochs"), "many", "not of type int"),
        (("trainer", "epochs"), 1.5, "not of type int"),
        (("trainer", "epochs"), 0, "must be 1 or more"),
        (("trainer", "steps_per_epoch"), "???", "must be given a value"),
        (("trainer", "epochs"), None, "must be given a value"),
        (("trainer", "run_eagerly"), True, "cannot be used with parameter servers"),
        (("trainer", "steps_per_execution"), 101, "more than trainer.steps_per_epoch"),
        (("trainer", "steps_per_execution"), "ten", "must be a number of 1 or more, or auto"),
        (("trainer", "steps_per_execution"), 0, "must be 1 or more"),
        (("trainer", "dense_sync_every"), 11, "more than the 10 steps of an execution (at most 10)"),
        (("cluster", "num_workers"), 0, "must be 1 or more"),
        (("cluster", "num_ps"), -1, "must be 0 or more"),
        (("cluster", "placement"), "gredy", "must be one of greedy, round_robin"),
        (("model", "unit"), 3, "no such key"),
        (("model", "embedding_dim"), "wide", "not of type int"),
        (("model", "_target_"), "psrun.models.embedding.embeding", "Did you mean 'embedding'?"),
        (("model", "_target_"), "no_such_module.model", "no module named"),
        (("model", "_target_"), 3, "needs a _target_"),
        (("data", "global_batch_size"), 0, "must be 1 or more"),
        (("data", "path"), "/no/such/file", "is not there"),
        (("data", "visitation"), "twice", "must be one of once, every_worker, dynamic"),
        (("optimizer", "_target_"), "tf_kears.optimizers.Adam", "no module named"),
        (("mode",), "tarin", "must be one of train, plan"),
        (("nonsense",), 1, "no such key"),
        (("seed",), "x", "not of type int"),
    ],
)  # fmt: skip
def test_a_problem_is_told_by_its_key(path, value, said):
    found = problems(changed(*path, value=value))
    wanted = ".".join(path) if path[-1] != "_target_" or value != 3 else path[0]
    assert said in found[wanted]


def test_all_problems_are_told_at_once():
    raw = raw_config()
    raw["trainer"]["epochs"], raw["cluster"]["num_workers"], raw["model"]["unit"] = "x", 0, 1
    assert set(problems(raw)) == {"trainer.epochs", "cluster.num_workers", "model.unit"}


def test_the_data_service_needs_parameter_servers():
    assert "choose once" in problems(raw_config("cluster=none", "data.visitation=dynamic"))["data.visitation"]


def test_validation_needs_fit():
    assert "trainer=fit" in problems(raw_config("evaluation=validation"))["evaluation"]


def callback(name: str, **options) -> dict:
    return {"_target_": f"tf_keras.callbacks.{name}", **options}


@pytest.mark.parametrize(
    ("node", "overrides", "said"),
    [
        (callback("TerminateOnNaN"), (), "psrun itself stops"),
        (callback("ModelCheckpoint", filepath="m", save_freq=20), (), "use save_freq: epoch"),
        (callback("ModelCheckpoint", filepath="m.keras"), ("partitioner=fixed_shards",), "cannot be loaded"),
        (callback("BackupAndRestore", backup_dir="b", save_freq=5), (), "saves nothing"),
        (callback("BackupAndRestore", backup_dir="b", save_before_preemption=True), (), "does nothing here"),
        (callback("LambdaCallback", on_batch_end="f"), (), "epoch-level"),
        (callback("LearningRateScheduler", schedule="f"),
         ("+optimizer.learning_rate._target_=tf_keras.optimizers.schedules.CosineDecay",), "is ignored"),
    ],
)  # fmt: skip
def test_callbacks_that_lie_under_parameter_servers_are_refused(node, overrides, said):
    raw = raw_config(*FIT, *(o for o in overrides if "learning_rate" not in o))
    if any("learning_rate" in override for override in overrides):
        raw["optimizer"]["learning_rate"] = {"_target_": "tf_keras.optimizers.schedules.CosineDecay"}
    raw["trainer"]["callbacks"] = [node]
    assert said in problems(raw)["trainer.callbacks[0]"]
    raw["cluster"] = {"kind": "none"}
    loading.load(raw)  # without parameter servers they do what they say


def test_callbacks_that_work_are_let_through():
    raw = raw_config(*FIT, "partitioner=fixed_shards")
    raw["trainer"]["callbacks"] = [callback("ModelCheckpoint", filepath="m"), callback("EarlyStopping", monitor="loss")]
    loading.load(raw)


def test_nothing_of_the_configuration_imports_tensorflow():
    code = (
        "import sys, psrun.cli, psrun.execution; from psrun import loading; "
        "sys.path.insert(0, 'tests'); import support; support.run_config('model=wide_deep', 'trainer=fit'); "
        "print(sorted(m for m in sys.modules if m in ('tensorflow', 'tf_keras', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
