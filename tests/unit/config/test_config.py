"""The configuration: every problem is reported, at once, by key, and without TensorFlow."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from support import raw_config, run_config

from psrun.config import choices, parse
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError

FIT = ("trainer=fit", "evaluation=none")


def problems(raw) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        parse.load(raw)
    return {problem.key: problem.message for problem in raised.value.problems}


def changed(*path: str, value, overrides: tuple[str, ...] = ()):
    raw = copy.deepcopy(raw_config(*overrides))
    node = raw
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return raw


def test_data_files_that_are_missing_are_reported_together(tmp_path):
    """Before TensorFlow is imported, patterns too; files of other file systems are not looked for."""
    (tmp_path / "rows.csv").touch()
    table = ("data=table", "data.label=label", "evaluation=none")

    def missing(path: str, eval_path: str) -> dict[str, str]:
        return problems(raw_config(*table, f"data.path={path}", f"data.eval_path={eval_path}"))

    messages = missing(f"{tmp_path}/train-*.csv", f"{tmp_path}/eval.csv")
    assert messages["data.path"].startswith(f"no file matches '{tmp_path}/train-*.csv'")
    assert messages["data.eval_path"].startswith(f"'{tmp_path}/eval.csv' does not exist")
    (tmp_path / "rows[1].csv").touch()
    assert set(missing(f"'{tmp_path}/rows[1].csv'", f"{tmp_path}/eval.csv")) == {"data.eval_path"}
    assert set(missing("gs://rows/train-*.csv", f"{tmp_path}/?.csv")) == {"data.eval_path"}
    run_config(*table, f"data.path={tmp_path}/ro*.csv", f"data.eval_path={tmp_path}")


@pytest.mark.parametrize("group", choices.KINDS)
def test_every_choice_of_every_group_loads(group):
    for kind, cls in choices.KINDS[group].items():
        needed = ("trainer=fit",) if kind in ("validation", "multi_worker_mirrored") else ()
        needed = ("cluster=local",) if kind.startswith("sidecar") else needed
        needed = ("cluster=none",) if kind == "simulated" else needed
        loaded = run_config(f"{group}={kind}", *needed)
        assert type(getattr(loaded, group)) is cls


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("trainer", "epoch"), 3, "Did you mean 'epochs'?"),
        (("trainer", "epochs"), "many", "must be a number of 1 or more, or auto"),
        (("trainer", "epochs"), "aut", "must be a number of 1 or more, or auto. Did you mean 'auto'?"),
        (("trainer", "epochs"), 1.5, "must be an integer or auto"),
        (("trainer", "steps_per_epoch"), 1.5, "must be an integer or auto or null"),
        (("data", "global_batch_size"), "atuo", "must be a number of 1 or more, or auto"),
        (("trainer", "epochs"), 0, "must be 1 or more"),
        (("trainer", "steps_per_epoch"), "???", "is required"),
        (("trainer", "epochs"), None, "is null; set trainer.epochs=... (an integer or auto)"),
        (("trainer", "run_eagerly"), True, "is not supported with parameter servers"),
        (("trainer", "steps_per_execution"), "ten", "must be a number of 1 or more, or auto"),
        (("trainer", "steps_per_execution"), 0, "must be 1 or more"),
        (("trainer", "dense_sync_every"), 11, "must be at most 10: the steps of an execution"),
        (("cluster", "num_workers"), 0, "must be 1 or more"),
        (("cluster", "num_ps"), -1, "must be 0 or more"),
        (("cluster", "placement"), "gredy", "must be one of greedy, round_robin"),
        (("model", "unit"), 3, "no such key"),
        (("model", "embedding_dim"), "wide", "must be an integer"),
        (("model", "_target_"), "psrun.models.embedding.embeding", "Did you mean 'embedding'?"),
        (("model", "_target_"), "no_such_module.model", "no module named"),
        (("model", "_target_"), 3, "must have a _target_"),
        (("data", "global_batch_size"), 0, "must be 1 or more"),
        (("cluster", "replicas_per_worker"), 0, "must be 1 or more"),
        (("cluster", "slow_workers"), {2: 0.1}, "names worker 2, which does not exist; the workers are 0 to 1"),
        (("cluster", "slow_workers"), {1: -0.1}, "is -0.1 for worker 1, must be 0 or more"),
        (("cluster", "slow_workers"), "all", "must be"),
        (("data", "path"), "/no/such/file", "does not exist"),
        (("data", "visitation"), "twice", "must be one of once, every_worker, dynamic"),
        (("optimizer", "learning_rate"), -1, "is -1, must be a number of 0 or more"),
        (("optimizer", "learning_rate"), float("nan"), "is nan, must be a number of 0 or more"),
        (("optimizer", "learning_rate"), "fast", "is 'fast', must be a number, such as optimizer.learning_rate=0.01"),
        (("optimizer", "learning_rate"), True, "is True, must be a number"),
        (("optimizer", "learning_rate"), None, "is null, must be a number, such as optimizer.learning_rate=0.01"),
        (("optimizer", "learning_rate"), {"decay": 0.9}, "or a schedule with a _target_"),
        (("optimizer", "learning_rate"), [0.1, 0.2], "add -m and write optimizer.learning_rate=0.1,0.2"),
        (("optimizer", "epsilon"), [1e-7], "is [1e-07], must be a single number"),
        (("optimizer", "learning_rate"), "???", "is required; set optimizer.learning_rate="),
        (("optimizer", "_target_"), "tf_kears.optimizers.Adam", "no module named"),
        (("mode",), "tarin", "must be one of train, plan"),
        (("nonsense",), 1, "no such key"),
        (("seed",), "x", "must be an integer"),
        (("seed",), -1, "is -1, must be 0 or more"),
        (("seed",), 2**32, "is 4294967296, must be at most 4294967295"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_by_its_key(path, value, message):
    messages = problems(changed(*path, value=value))
    wanted = ".".join(path) if path[-1] != "_target_" or value != 3 else path[0]
    assert message in messages[wanted]


def test_steps_of_an_execution_fit_into_an_epoch_that_is_set():
    key = "trainer.steps_per_execution"
    assert problems(raw_config(f"{key}=101", "trainer.steps_per_epoch=100")) == {
        key: "is 101, must be at most trainer.steps_per_epoch=100"
    }


def test_all_problems_are_reported_at_once():
    raw = raw_config()
    raw["trainer"]["epochs"], raw["cluster"]["num_workers"], raw["model"]["unit"] = "x", 0, 1
    assert set(problems(raw)) == {"trainer.epochs", "cluster.num_workers", "model.unit"}


def test_psrun_reads_keys_of_every_model_that_its_function_does_not_take(tmp_path, monkeypatch):
    (tmp_path / "keyed_models.py").write_text(
        "def plain(source, *, width: int = 3): ...\n"
        "def own(source, from_logits=True): ...\n"
        "def needs(source, *, from_logits): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def model_of(name: str, **keys: Any) -> RunConfig:
        node = {"_target_": f"keyed_models.{name}", **keys}
        return parse.load({**raw_config(), "model": node})

    plain = model_of("plain", width=4, from_logits=True)
    assert plain.model_keys.from_logits is True
    assert plain.model.options == {"width": 4}
    for value, options in ((False, {"from_logits": False}), (None, {})):
        own = model_of("own", from_logits=value)
        assert own.model_keys.from_logits is None
        assert own.model.options == options
    assert model_of("needs", from_logits=None).model.options == {"from_logits": None}
    assert run_config("model=dense", "model.from_logits=true").model_keys.from_logits is True
    for key, value, message in (("from_logits", "maybe", "must be true"), ("from_logit", True, "mean 'from_logits'")):
        with pytest.raises(ConfigError, match=rf"model\.{key}: .*{message}"):
            model_of("plain", **{key: value})


def test_every_replica_has_an_example_of_a_batch():
    raw = raw_config("cluster.replicas_per_worker=4", "data.global_batch_size=3")
    assert "is 3, must be at least 4" in problems(raw)["data.global_batch_size"]


@pytest.mark.parametrize("model", ["wide_deep", "dlrm", "two_tower", "din"])
def test_models_of_large_tables_choose_an_optimizer_that_others_may_replace(model):
    own, replaced = raw_config(f"model={model}"), raw_config("optimizer=sgd", f"model={model}")
    assert own["optimizer"]["_target_"] == "psrun.optimizers.sparse.LazyAdam"
    assert replaced["optimizer"]["_target_"] == "tf_keras.optimizers.SGD"
    assert raw_config("model=embedding")["optimizer"]["_target_"] == "tf_keras.optimizers.Adagrad"
    chosen = raw_config("experiment=flights")["optimizer"]  # which names its own
    assert (chosen["_target_"], chosen["learning_rate"]) == ("tf_keras.optimizers.Adagrad", 0.02)


def test_the_data_service_needs_parameter_servers():
    assert "set it to once" in problems(raw_config("cluster=none", "data.visitation=dynamic"))["data.visitation"]


def test_a_consistency_mode_needs_parameter_servers_to_train():
    for mode in ("bounded_delay", "ssp", "sync"):
        raw = raw_config(f"consistency={mode}", "cluster=mirrored")
        assert f"'{mode}' requires parameter servers" in problems(raw)["consistency"]
    raw = raw_config("consistency=bounded_delay", "cluster=mirrored")
    bounded = parse.load({**raw, "mode": "export", "resume": "runs/a"}).consistency
    assert bounded.facts == {"mode": "bounded_delay", "max_delay": 8}
    assert parse.load({**raw, "consistency": {"kind": "async"}}).consistency.facts == {"mode": "async"}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["trainer.steps_per_execution=5"], "trainer.steps_per_execution", "is 5, which consistency=sync does not"),
        (["trainer.prefetch_rows=true"], "trainer.prefetch_rows", "set it to False"),
        (["trainer.dense_sync_every=2"], "trainer.dense_sync_every", "set it to 1"),
        (["data.visitation=dynamic"], "data.visitation", "choose once"),
        (["cluster.replicas_per_worker=2"], "cluster.replicas_per_worker", "must be 1"),
        (["consistency.backup_workers=2"], "consistency.backup_workers", "must be less than the number of workers, 2"),
        (["consistency.backup_workers=-1"], "consistency.backup_workers", "must be 0 or more"),
        (["consistency.min_workers=3"], "consistency.min_workers", "is 3, must be at most 2"),
        (["consistency.min_workers=2", "consistency.backup_workers=1"], "consistency.min_workers", "at most 1"),
        (["cluster=tf_config", "trainer.steps_per_epoch=null"], "trainer.steps_per_epoch", "is required"),
    ],
)  # fmt: skip
def test_what_synchronous_training_does_not_support_is_named(overrides, key, message):
    assert message in problems(raw_config("consistency=sync", *overrides))[key]


def test_synchronous_steps_are_executed_one_by_one():
    for packed in ("null", "auto", "1"):
        run = parse.load(raw_config("consistency=sync", f"trainer.steps_per_execution={packed}"))
        assert run.trainer.num_steps_packed == 1
    assert run.consistency.facts == {"mode": "sync", "backup_workers": 0, "min_workers": None}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (("cluster=none", "optimizer.staleness_aware=true"), "staleness_aware", "requires a known staleness"),
        (("cluster=mirrored", "optimizer.delay_compensation=0.1"), "delay_compensation", "cluster=mirrored does not"),
        (("optimizer.delay_compensation=-1",), "delay_compensation", "is -1, must be 0 or more"),
        (("optimizer.staleness_aware=true", "trainer.dense_sync_every=2"), "staleness_aware", "dense_sync_every=2"),
        (
            ("consistency=sync", "optimizer.staleness_aware=true"),
            "staleness_aware",
            "has no effect with consistency=sync",
        ),
    ],
)
def test_an_optimizer_that_knows_the_staleness_needs_one(overrides, key, message):
    raw = raw_config("optimizer=sparse_sgd", *overrides)
    assert message in problems(raw)[f"optimizer.{key}"]


def test_moving_averages_of_weights_are_refused_for_a_training():
    raw = raw_config("optimizer=adam", "+optimizer.use_ema=true")
    assert "use the weights, not their moving averages; set it to false" in problems(raw)["optimizer.use_ema"]
    raw_of_a_run = raw_config("optimizer=adam", "+optimizer.use_ema=true", "mode=export", "resume=here")
    assert parse.load(raw_of_a_run).optimizer.options["use_ema"] is True


def test_validation_needs_fit():
    assert "trainer=fit" in problems(raw_config("evaluation=validation"))["evaluation"]


def callback(name: str, **options) -> dict:
    return {"_target_": f"tf_keras.callbacks.{name}", **options}


def test_a_backup_that_tensorflow_would_not_find_is_refused():
    raw = raw_config(*FIT, "cluster=none", "checkpoint=none")
    raw["trainer"]["callbacks"] = [callback("BackupAndRestore", backup_dir="backups/a[1]")]
    assert "for a pattern; choose a folder without" in problems(raw)["trainer.callbacks[0].backup_dir"]


@pytest.mark.parametrize(
    ("node", "overrides", "message"),
    [
        (callback("TerminateOnNaN"), (), "psrun stops when"),
        (callback("ModelCheckpoint", filepath="m", save_freq=20), (), "use save_freq: epoch"),
        (callback("ModelCheckpoint", filepath="m.keras"), ("partitioner=fixed_shards",), "cannot be loaded"),
        (callback("BackupAndRestore", backup_dir="b", save_freq=5), (), "saves nothing"),
        (callback("BackupAndRestore", backup_dir="b", save_before_preemption=True), (), "ignores save_before"),
        (callback("LambdaCallback", on_batch_end="f"), (), "epoch-level"),
        (callback("LearningRateScheduler", schedule="f"),
         ("+optimizer.learning_rate._target_=tf_keras.optimizers.schedules.CosineDecay",), "has no effect"),
    ],
)  # fmt: skip
def test_callbacks_that_lie_under_parameter_servers_are_refused(node, overrides, message):
    raw = raw_config(*FIT, *(o for o in overrides if "learning_rate" not in o))
    if any("learning_rate" in override for override in overrides):
        raw["optimizer"]["learning_rate"] = {"_target_": "tf_keras.optimizers.schedules.CosineDecay"}
    raw["trainer"]["callbacks"] = [node]
    raw["checkpoint"] = {"kind": "none"}
    assert message in problems(raw)["trainer.callbacks[0]"]
    raw["cluster"], raw["trainer"]["steps_per_execution"] = {"kind": "none"}, 1
    parse.load(raw)  # without parameter servers they work as documented


@pytest.mark.parametrize("cluster", ["inprocess", "none", "local"])
@pytest.mark.parametrize("name", ["BackupAndRestore", "experimental.BackupAndRestore"])
def test_a_backup_beside_psruns_checkpoints_is_refused(cluster, name):
    raw = raw_config("trainer=fit", f"cluster={cluster}")
    raw["trainer"]["callbacks"] = [callback(name, backup_dir="b")]
    assert "choose checkpoint=none" in problems(raw)["trainer.callbacks[0]"]
    raw["checkpoint"] = {"kind": "none"}
    parse.load(raw)
    raw["cluster"] = {"kind": "none"}
    raw["trainer"]["callbacks"][0]["save_freq"] = 5
    assert "steps_per_execution=1" in problems(raw)["trainer.callbacks[0]"]


def test_callbacks_that_work_are_let_through():
    raw = raw_config(*FIT, "partitioner=fixed_shards")
    raw["trainer"]["callbacks"] = [callback("ModelCheckpoint", filepath="m"), callback("EarlyStopping", monitor="loss")]
    parse.load(raw)


def test_a_command_imports_no_sweeps_and_nothing_of_the_configuration_imports_tensorflow():
    code = (
        "import sys, hydra, psrun.cli.dispatch, psrun.roles.run_process; from psrun.config import parse; "
        "slow = {'importlib.metadata'} if hydra.__version__ < '1.4' else set(); "  # which Hydra 1.4 itself imports
        "print(sorted((slow | {'psrun.cli.hydra_sweeps', 'psrun.launch.sweeps'}) & {*sys.modules})); "
        "sys.path.insert(0, 'tests'); import support; support.run_config('model=wide_deep', 'trainer=fit'); "
        "print(sorted(m for m in sys.modules if m in ('tensorflow', 'tf_keras', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
