"""The configuration of a run is read from plain values, without TensorFlow, and answers about itself.

The messages: test_messages_core.py.
"""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from plain_config import choice, keys_of_problems, loaded, plain_config, put
from support import raw_config

from psrun.config import choices, groups, parse
from psrun.config.run_config import RunConfig
from psrun.config.topology import EVALUATOR, Task
from psrun.errors import ConfigError

NEEDED = {
    "validation": ["trainer=fit"], "multi_worker_mirrored": ["trainer=fit"],
    "sidecar": ["cluster=local"], "sidecar_thread": ["cluster=local"],
    "scheduled": ["consistency.schedule={0: sync}"],
}  # fmt: skip


@pytest.mark.parametrize("arguments", [["cluster=slurm", "seed=3"], ["model=dlrm", "optimizer=sgd"]])
def test_values_read_from_conf_are_those_that_hydra_composes(arguments):
    """What the other tests here rely on."""
    assert plain_config(*arguments) == raw_config(*arguments)


@pytest.mark.parametrize("group", choices.KINDS)
def test_every_choice_of_every_group_loads(group):
    for kind, cls in choices.KINDS[group].items():
        run = loaded(f"{group}={kind}", *NEEDED.get(kind, []))
        assert type(run.trackers[kind] if group == "tracker" else getattr(run, group)) is cls


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
    """A consistency mode without parameter servers."""
    other = ("cluster=mirrored", "consistency=bounded_delay")
    assert keys_of_problems(plain_config(*other)) == {"consistency"}
    run = loaded(*other, "mode=export", "resume=runs/a")
    assert run.consistency.facts == {"mode": "bounded_delay", "max_delay": 8}


def test_predictions_are_not_written_to_an_object_store():
    run = ("mode=predict", "resume=runs/a", "predict.path=gs://bucket/predictions.csv")
    assert keys_of_problems(plain_config(*run)) == {"predict.path"}


BOUNDED = ("consistency=bounded_delay", "trainer.steps_per_epoch=95")


@pytest.mark.parametrize(
    ("overrides", "never_waits"),
    [
        ((*BOUNDED, "consistency.max_delay=9"), None),
        ((*BOUNDED, "consistency.max_delay=10"), "an epoch has only 10 rounds (trainer.steps_per_execution=10)"),
        ((*BOUNDED, "consistency.max_delay=94", "trainer.steps_per_execution=1"), None),
        (
            (*BOUNDED, "consistency.max_delay=95", "trainer.steps_per_execution=1"),
            "only 95 rounds",
        ),
        ((*BOUNDED, "consistency.max_delay=95", "trainer.steps_per_execution=auto"), None),  # known later
        (("consistency=ssp", "consistency.staleness=95"), None),  # workers count rounds over all epochs
        ((), None),
    ],
)
def test_a_bound_that_no_worker_ever_meets_is_known_where_it_is_certain(overrides, never_waits):
    run = loaded("cluster=inprocess", *overrides)
    warning = run.consistency.never_waits(run.trainer)
    assert (warning is None) if never_waits is None else never_waits in str(warning)


def test_modes_that_follow_each_other_have_the_options_of_conf_and_end_with_the_training():
    gba = "{kind: gba, tolerance: 5}"
    run = loaded("cluster=inprocess", "consistency=scheduled", f"consistency.schedule={{0: sync, 20: {gba}}}",
                 "trainer.steps_per_epoch=10")  # fmt: skip
    mode = run.consistency
    assert mode.title == "sync (backup_workers=0) from step 0, then gba (tolerance=5, decay=1.0) from step 20"
    assert (run.trainer.num_steps_packed, mode.gradients_per_update(3)) == (1, 3)
    assert mode.never_waits(dataclasses.replace(run.trainer, epochs=3)) is None
    beyond = mode.never_waits(dataclasses.replace(run.trainer, epochs=2))
    assert beyond == "consistency.schedule: names step 20, but the training has 20 steps"


def test_a_run_records_the_mode_of_dense_weights_with_its_options():
    facts = {
        dense: loaded("cluster=inprocess", "consistency=hybrid", f"consistency.dense={dense}").consistency.facts
        for dense in ("sync", "gba")
    }
    assert facts["sync"] == {
        "mode": "hybrid", "tables": "async", "dense": "sync", "backup_workers": 0, "min_workers": None,
    }  # fmt: skip
    assert facts["gba"] == {
        "mode": "hybrid", "tables": "async", "dense": "gba", "gradients": None, "tolerance": 2, "decay": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "is_shown"),
    [
        (("consistency=bounded_delay",), True),
        (("consistency=ssp",), True),
        (("consistency=ssp", "trainer.steps_per_execution=4"), False),
        (("consistency=ssp", "trainer.steps_per_execution=auto"), False),
        (("consistency=async",), False),
        (("consistency=sync",), False),
    ],
)
def test_the_steps_of_a_round_are_shown_if_they_are_not_configured(overrides, is_shown):
    assert loaded("cluster=inprocess", *overrides).counts_default_executions is is_shown


@pytest.mark.parametrize("packed", ["null", "auto", "1"])
def test_synchronous_steps_are_executed_one_by_one(packed):
    run = loaded("consistency=sync", f"trainer.steps_per_execution={packed}")
    assert run.trainer.num_steps_packed == 1
    assert run.consistency.facts == {"mode": "sync", "backup_workers": 0, "min_workers": None}
    assert run.consistency.title == "sync (backup_workers=0)"


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
    """Those that do not: test_messages_core.py."""
    node = f"trainer.callbacks=[{{_target_: tf_keras.callbacks.{callback}}}]"
    loaded("trainer=fit", "evaluation=none", "checkpoint=none", *arguments, node)


def test_a_command_imports_no_sweeps_and_nothing_of_the_configuration_imports_tensorflow():
    code = (
        "import sys, hydra, psrun.cli.command_line, psrun.roles.run_process; from psrun.config import parse; "
        "slow = {'importlib.metadata'} if hydra.__version__ < '1.4' else set(); "  # which Hydra 1.4 itself imports
        "print(sorted((slow | {'psrun.runs.sweeps.hydra_sweeps', 'psrun.runs.sweeps.runner'}) & {*sys.modules})); "
        "sys.path.insert(0, 'tests/harness'); import support; support.run_config('model=dense', 'trainer=fit'); "
        "print(sorted(m for m in sys.modules if m in ('tensorflow', 'tf_keras', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


# -- values of any type

# An integer, a number, null, a boolean, a list, no text, mappings, text with blanks.
VALUES = (3, float("nan"), None, True, [1], "", {"a": 1}, {1: [None]}, "two words")


def paths_of(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all keys, also of those with mappings."""
    for name, value in node.items():
        yield (*path, name)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, name))


def faults(raw: dict[str, Any], path: tuple[str, ...], values: Iterable[Any]) -> Iterator[str]:
    """What is wrong with psrun's answers to values of a key."""
    for value in values:
        tried = copy.deepcopy(raw)
        put(tried, ".".join(path), value)
        try:
            parse.load(tried)
        except ConfigError as error:
            for problem in error.problems:
                if not problem.key or not problem.message.strip() or "Hydra" in problem.message:
                    yield f"{'.'.join(path)}={value!r}: {problem}"
        except Exception as error:
            yield f"{'.'.join(path)}={value!r}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("part", [len(VALUES), pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("group", [*parse.GROUPS, None])
def test_values_of_any_type_in_every_key(group, part):
    """Each is accepted, or refused with the name of the key; there is no traceback.

    One of the values for each key, another one for the next key; or all.
    """
    raw = plain_config()
    names = groups.choices([])[group] if group else ()
    raws = [{**raw, group: choice(group, name)[group]} for name in names] if group else [raw]
    seen = set[tuple[str, str]]()
    found = list[str]()
    for each in raws:
        nodes = {name: node for name, node in each.items() if (name == group if group else name not in parse.GROUPS)}
        for path in paths_of(nodes):
            if (path[0], path[-1]) not in seen:  # choices and jobs share keys
                seen.add((path[0], path[-1]))
                found += faults(each, path, VALUES[len(seen) % part :: part])
    assert seen
    assert found == []


# -- what choices answer about themselves

ADDRESSES = "cluster.addresses={chief: [h:1], worker: [h:2], ps: [h:3]}"
SERVERS, PROCESSES, SYNCHRONOUS, ELSEWHERE, MACHINES = (
    "has_parameter_servers",
    "has_server_processes",
    "has_synchronous_workers",
    "started_elsewhere",
    "spans_machines",
)


@pytest.mark.parametrize(
    ("overrides", "true", "size"),
    [
        (("cluster=none",), set(), (1, 0)),
        (("cluster=one_device",), set(), (1, 0)),
        (("cluster=mirrored",), set(), (1, 0)),
        (("cluster=central_storage",), set(), (1, 0)),
        (("cluster=multi_worker_mirrored", "trainer=fit"), {SYNCHRONOUS}, (2, 0)),
        (("cluster=inprocess",), {SERVERS}, (2, 1)),
        (("cluster=local",), {SERVERS, PROCESSES}, (2, 1)),
        (("cluster=tf_config",), {SERVERS, PROCESSES, ELSEWHERE, MACHINES}, (None, None)),
        (("cluster=static", ADDRESSES), {SERVERS, PROCESSES, ELSEWHERE, MACHINES}, (None, None)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
def test_what_a_cluster_answers(overrides, true, size):
    sized = ("cluster.num_workers=2",) if size[0] == 2 else ()
    sized += ("cluster.num_ps=1",) if size[1] == 1 else ()
    cluster = loaded("evaluation=none", *overrides, *sized).cluster
    assert {name for name in (SERVERS, PROCESSES, SYNCHRONOUS, ELSEWHERE, MACHINES) if getattr(cluster, name)} == true
    assert (cluster.num_workers, cluster.num_ps) == size
    assert (cluster.connect_timeout_s > 0) == (cluster.chief_timeout_s > 0) == (PROCESSES in true)
    shown = {(2, 1): " (2 workers, 1 ps)", (2, 0): " (2 workers)"}.get(size, "")
    assert cluster.title == cluster.kind + shown


@pytest.mark.parametrize(
    ("kind", "runs_on", "due"),
    [
        ("none", None, False),
        ("validation", "fit", False),
        ("direct", "coordinator", True),
        ("distributed", "coordinator", True),
        ("exact", "coordinator", True),
        ("sidecar", "evaluator", False),
        ("sidecar_thread", "evaluator", False),
    ],
)
def test_what_an_evaluation_answers(kind, runs_on, due):
    trainer = ("trainer=fit",) if kind == "validation" else ()
    every = ("evaluation.every=2",) if runs_on == "coordinator" else ()
    evaluation = loaded("cluster=local", f"evaluation={kind}", *trainer, *every).evaluation
    assert (evaluation.runs_on, evaluation.sets_worker_aside) == (runs_on, kind == "sidecar_thread")
    assert (evaluation.is_due(2), evaluation.is_due(3)) == (due, False)


@pytest.mark.parametrize(
    ("override", "group", "answers"),
    [
        ("partitioner=none", "partitioner", {"splits": False, "num_shards": None}),
        ("partitioner=fixed_shards", "partitioner", {"splits": True, "num_shards": 2}),
        ("partitioner=min_size", "partitioner", {"splits": True, "num_shards": None}),
        ("partitioner=max_size", "partitioner", {"splits": True, "num_shards": None}),
        ("checkpoint=epoch", "checkpoint", {"are_taken": True}),
        ("checkpoint=none", "checkpoint", {"are_taken": False, "best_metric": None}),
        ("trainer=fit", "trainer", {"uses_fit": True}),
        ("trainer=custom_loop", "trainer", {"uses_fit": False, "callbacks": ()}),
    ],
)
def test_what_other_choices_answer(override, group, answers):
    choice = getattr(loaded("cluster=inprocess", override), group)
    assert {name: getattr(choice, name) for name in answers} == answers


@pytest.mark.parametrize(
    ("overrides", "metric", "mode"),
    [
        ((), "val_loss", "min"),
        (("early_stopping.metric=val_auc", "early_stopping.mode=max"), "val_auc", "max"),
        (("early_stopping.metric=val_loss", "early_stopping.mode=min", "sweep.metric=auc", "sweep.mode=max"),
         "auc", "max"),
        (("sweep.metric=auc", "sweep.mode=max", "checkpoint.best_metric=val_mae", "checkpoint.best_mode=min"),
         "val_mae", "min"),
        (("checkpoint=none",), "val_loss", "min"),
    ],
)  # fmt: skip
def test_the_metric_that_says_which_evaluation_is_the_best(overrides, metric, mode):
    assert loaded("cluster=inprocess", *overrides).compared_by == (metric, mode)


@pytest.mark.parametrize(
    ("evaluation", "evaluator", "of_job"),
    [("none", None, 0), ("sidecar", EVALUATOR, 1), ("sidecar_thread", Task("worker", 1), 0)],
)
def test_the_tasks_of_a_run(evaluation, evaluator, of_job):
    run = loaded("cluster=local", "cluster.num_workers=2", "cluster.num_ps=1", f"evaluation={evaluation}")
    assert run.evaluator == evaluator
    assert run.num_tasks == {"chief": 1, "ps": 1, "worker": 2} | ({"evaluator": 1} if of_job else {})
