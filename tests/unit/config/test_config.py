"""The configuration of a run is read from plain values, without TensorFlow. The messages: test_messages_config.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from plain_config import loaded, plain_config
from support import raw_config

from psrun.config import choices, parse
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError

NEEDED = {
    "validation": ["trainer=fit"], "multi_worker_mirrored": ["trainer=fit"], "simulated": ["cluster=none"],
    "sidecar": ["cluster=local"], "sidecar_thread": ["cluster=local"],
}  # fmt: skip


def keys_of_problems(raw: dict[str, Any]) -> set[str]:
    with pytest.raises(ConfigError) as raised:
        parse.load(raw)
    return {problem.key for problem in raised.value.problems}


@pytest.mark.parametrize("arguments", [["cluster=slurm", "seed=3"], ["model=dlrm", "optimizer=sgd"]])
def test_values_read_from_conf_are_those_that_hydra_composes(arguments):
    """What the other tests here rely on."""
    assert plain_config(*arguments) == raw_config(*arguments)


@pytest.mark.parametrize("group", choices.KINDS)
def test_every_choice_of_every_group_loads(group):
    for kind, cls in choices.KINDS[group].items():
        assert type(getattr(loaded(*NEEDED.get(kind, []), f"{group}={kind}"), group)) is cls


def test_data_files_that_are_missing_are_reported_together(tmp_path):
    """Before TensorFlow is imported, patterns too; files of other file systems are not looked for."""
    (tmp_path / "rows.csv").touch()
    (tmp_path / "rows[1].csv").touch()

    def table(path: str, eval_path: str) -> dict[str, Any]:
        paths = (f"data.path='{path}'", f"data.eval_path='{eval_path}'")
        return plain_config("data=table", "data.label=label", "evaluation=none", *paths)

    assert keys_of_problems(table(f"{tmp_path}/train-*.csv", f"{tmp_path}/eval.csv")) == {"data.path", "data.eval_path"}
    assert keys_of_problems(table(f"{tmp_path}/rows[1].csv", f"{tmp_path}/eval.csv")) == {"data.eval_path"}
    assert keys_of_problems(table("gs://rows/train-*.csv", f"{tmp_path}/?.csv")) == {"data.eval_path"}
    parse.load(table(f"{tmp_path}/ro*.csv", str(tmp_path)))


def test_psrun_reads_keys_of_every_model_that_its_function_does_not_take(tmp_path, monkeypatch):
    (tmp_path / "keyed_models.py").write_text(
        "def plain(source, *, width: int = 3): ...\n"
        "def own(source, from_logits=True): ...\n"
        "def needs(source, *, from_logits): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def model_of(name: str, **keys: Any) -> RunConfig:
        return parse.load({**raw_config(), "model": {"_target_": f"keyed_models.{name}", **keys}})

    plain = model_of("plain", width=4, from_logits=True)
    assert plain.model_keys.from_logits is True
    assert plain.model.options == {"width": 4}
    for value, options in ((False, {"from_logits": False}), (None, {})):
        own = model_of("own", from_logits=value)
        assert own.model_keys.from_logits is None
        assert own.model.options == options
    assert model_of("needs", from_logits=None).model.options == {"from_logits": None}
    assert loaded("model=dense", "model.from_logits=true").model_keys.from_logits is True
    for key, value in (("from_logits", "maybe"), ("from_logit", True)):
        with pytest.raises(ConfigError, match=rf"model\.{key}: "):
            model_of("plain", **{key: value})


@pytest.mark.parametrize(
    ("given", "read"), [("[no, yes]", ("no", "yes")), ("[3, 1]", (3, 1)), ("['1', '0']", ("1", "0")), ("null", None)]
)
def test_labels_yes_and_no_are_texts(given, read):
    """YAML reads them as booleans."""
    assert loaded(f"data.label_vocabulary={given}").data.label_vocabulary == read


@pytest.mark.parametrize("model", ["wide_deep", "two_tower"])
def test_models_of_large_tables_choose_an_optimizer_that_others_may_replace(model):
    assert raw_config(f"model={model}")["optimizer"]["_target_"] == "psrun.optimizers.sparse.LazyAdam"
    assert raw_config("optimizer=sgd", f"model={model}")["optimizer"]["_target_"] == "tf_keras.optimizers.SGD"


def test_modes_that_do_not_train_keep_what_a_training_cannot_have():
    """Such as a consistency mode without parameter servers, and moving averages of weights."""
    other = ("cluster=mirrored", "consistency=bounded_delay", "optimizer=adam", "optimizer.use_ema=true")
    assert keys_of_problems(plain_config(*other)) == {"consistency", "optimizer.use_ema"}
    run = loaded(*other, "mode=export", "resume=runs/a")
    assert run.consistency.facts == {"mode": "bounded_delay", "max_delay": 8}
    assert run.optimizer.options["use_ema"] is True


def test_a_run_of_before_has_the_default_consistency():
    assert parse.load({**raw_config(), "consistency": {"kind": "async"}}).consistency.facts == {"mode": "async"}


@pytest.mark.parametrize("packed", ["null", "auto", "1"])
def test_synchronous_steps_are_executed_one_by_one(packed):
    run = loaded("consistency=sync", f"trainer.steps_per_execution={packed}")
    assert run.trainer.num_steps_packed == 1
    assert run.consistency.facts == {"mode": "sync", "backup_workers": 0, "min_workers": None}


@pytest.mark.parametrize(
    ("callback", "arguments"),
    [
        ("TerminateOnNaN", ["cluster=none"]),
        ("ModelCheckpoint, filepath: m.keras", ["cluster=none", "partitioner=fixed_shards"]),
        ("BackupAndRestore, backup_dir: b, save_freq: 5", ["cluster=none", "trainer.steps_per_execution=1"]),
        ("LambdaCallback, on_batch_end: f", ["cluster=none"]),
        ("BackupAndRestore, backup_dir: b", ["cluster=local"]),
        ("ModelCheckpoint, filepath: m", ["partitioner=fixed_shards"]),
        ("EarlyStopping, monitor: loss", ["partitioner=fixed_shards"]),
    ],
)
def test_callbacks_that_work_are_let_through(callback, arguments):
    """Those that do not: test_messages_config.py."""
    node = f"trainer.callbacks=[{{_target_: tf_keras.callbacks.{callback}}}]"
    loaded("trainer=fit", "evaluation=none", "checkpoint=none", *arguments, node)


def test_a_command_imports_no_sweeps_and_nothing_of_the_configuration_imports_tensorflow():
    code = (
        "import sys, hydra, psrun.cli.dispatch, psrun.roles.run_process; from psrun.config import parse; "
        "slow = {'importlib.metadata'} if hydra.__version__ < '1.4' else set(); "  # which Hydra 1.4 itself imports
        "print(sorted((slow | {'psrun.cli.hydra_sweeps', 'psrun.launch.sweeps'}) & {*sys.modules})); "
        "sys.path.insert(0, 'tests/harness'); import support; support.run_config('model=wide_deep', 'trainer=fit'); "
        "print(sorted(m for m in sys.modules if m in ('tensorflow', 'tf_keras', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
