"""Surprising behaviour of Python, Hydra, OmegaConf, TensorFlow and tf-keras that the core works around.

A test that fails says that the library is mended: the workaround in the module that it names can go.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import omegaconf
import portpicker
import pytest
from bounds import BOUND_S
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

# Python


@pytest.mark.tensorflow
def test_lazy_modules_of_python_are_loaded_by_a_second_import_or_by_autograph(tmp_path, monkeypatch):
    """psrun.tf_internals.modules has lazy modules of its own."""
    import tensorflow as tf

    (tmp_path / "rarely_used.py").write_text("import sys\nsys.loaded_here.append(__name__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded: list[str] = []
    monkeypatch.setattr(sys, "loaded_here", loaded, raising=False)
    spec = importlib.util.find_spec("rarely_used")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rarely_used", module)
    spec.loader.exec_module(module)
    assert loaded == []

    import rarely_used  # noqa: F401

    tf.function(lambda x: x + x)(1.0)
    assert loaded == ["rarely_used"]


# Hydra and OmegaConf


def test_hydra_searches_config_dir_after_the_files_of_the_program(tmp_path, monkeypatch, capsys):
    """psrun.config.composition lets the files of --config-dir come first."""
    for folder, port in (("program", 1), ("own", 2)):
        (tmp_path / folder / "db").mkdir(parents=True)
        (tmp_path / folder / "db" / "mysql.yaml").write_text(f"port: {port}\n")
    (tmp_path / "program" / "main.yaml").write_text("defaults: [{db: mysql}, _self_]\n")
    command = ["program", "--config-dir", str(tmp_path / "own"), "--cfg", "job"]
    monkeypatch.setattr(sys, "argv", command)
    job = hydra.main(version_base="1.3", config_path=str(tmp_path / "program"), config_name="main")
    job(lambda config: None)()
    assert OmegaConf.create(capsys.readouterr().out) == {"db": {"port": 1}}


def test_hydra_1_3_takes_the_first_of_two_choices_of_a_group_in_a_defaults_list_and_1_4_the_last(tmp_path):
    """psrun.config.groups refuses a file with two choices of a group."""
    for folder in ("db", "experiment"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "db" / f"{name}.yaml").write_text(f"name: {name}\n")
    (tmp_path / "main.yaml").write_text("defaults: [{db: c}, {experiment: mine}]\n")
    twice = "# @package _global_\ndefaults:\n  - override /db: a\n  - override /db: b\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(twice)
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        name = hydra.compose("main").db.name
    is_1_3 = hydra.__version__.startswith("1.3.")
    assert name == ("a" if is_1_3 else "b")


def test_a_mapping_merged_into_a_list_is_pythons_type_error_in_omegaconf_2_4():
    """psrun.config.schema catches TypeError beside the errors of OmegaConf."""
    with pytest.raises(TypeError) as raised:
        OmegaConf.merge({"callbacks": [1]}, {"callbacks": {"a": 1}})
    is_2_3 = omegaconf.__version__.startswith("2.3.")
    assert isinstance(raised.value, OmegaConfBaseException) == is_2_3


# TensorFlow


@pytest.mark.tensorflow
def test_tensorflow_reads_no_checkpoint_in_a_folder_with_brackets(tmp_path):
    """psrun.checkpoint.checkpoints reads through links; psrun.checkpoint.trained_model warns."""
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    folder = tmp_path / "units=[64,32]"
    path = checkpoint.write(str(folder / "ckpt-1"))
    assert (folder / "ckpt-1.index").exists()
    with pytest.raises(tf.errors.NotFoundError):
        checkpoint.read(path)


@pytest.mark.inprocess
def test_a_branch_of_a_step_cannot_look_up_in_a_table(cluster_spec, monkeypatch):
    """psrun.tf_internals.strategies: let_branches_look_up."""
    import tensorflow as tf
    from tensorflow.python.distribute.ps_values import DistributedTable

    from psrun.cluster import strategy

    made = strategy.parameter_servers(cluster_spec[1], None)
    replaced = DistributedTable.resource_handle.fget
    monkeypatch.setattr(DistributedTable, "resource_handle", inspect.getclosurevars(replaced).nonlocals["handle"])
    with made.strategy.scope():
        words = tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1]))
        table = tf.lookup.StaticHashTable(words, -1)
        total = tf.Variable(1)

    def look_up():
        return table.lookup(tf.constant("a"))

    @tf.function
    def step():
        total.assign_add(tf.cond(total > 0, look_up, lambda: 0))

    with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value for placeholder"):
        step()


_WAIT_FOR_ANOTHER_WORKER = """
import sys, threading, time
import tensorflow as tf

def tick():
    while True:
        print("tick", flush=True)
        time.sleep(0.1)

spec = tf.train.ClusterSpec({"worker": sys.argv[1:]})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    spec, task_type="worker", task_id=0, rpc_layer="grpc"
)
threading.Thread(target=tick, daemon=True).start()
tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
"""


@pytest.mark.release
def test_a_synchronous_strategy_waits_with_pythons_lock_and_ignores_sigterm():
    """psrun.cluster.strategy waits for all tasks before it makes the strategy: wait_for_tasks."""
    addresses = [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(2)]  # the second does not start
    command = [sys.executable, "-c", _WAIT_FOR_ANOTHER_WORKER, *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            output = process.stdout.fileno()
            deadline_s = time.monotonic() + BOUND_S
            while not _catches_sigterm(process.pid):
                assert process.poll() is None
                assert time.monotonic() < deadline_s, "SIGTERM would end the process"
                time.sleep(0.05)
            # A thread prints ten times a second, unless the main thread waits with Python's lock.
            while select.select([output], [], [], 1)[0]:
                assert os.read(output, 4096), "the process has ended"
                assert time.monotonic() < deadline_s, "the thread still prints"
            process.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            process.kill()


def _catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM; TensorFlow's is in C++, and Python does not know it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [caught] = [line.split()[1] for line in lines if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


# tf-keras


@pytest.mark.tensorflow
def test_keras_lists_the_table_of_an_adapted_lookup_among_the_variables():
    """psrun.tf_internals.strategies.variables_of leaves it out."""
    import tensorflow as tf
    import tf_keras

    lookup = tf_keras.layers.StringLookup()
    lookup.adapt(tf.constant(["a", "b"]))
    [table] = tf_keras.Sequential([tf_keras.Input((1,), dtype=tf.string), lookup]).variables
    assert not isinstance(table, tf.Variable)
    assert not hasattr(table, "name")


@pytest.mark.tensorflow
@pytest.mark.parametrize(("option", "moved"), [("clipvalue", 0.4), ("clipnorm", 0.2), ("global_clipnorm", 0.2)])
def test_keras_clips_the_gradients_of_a_row_before_it_adds_them_up(option, moved):
    """psrun.program.compiled_model deduplicates no look-ups where an optimizer clips: decide_lookups."""
    import tensorflow as tf
    import tf_keras

    table = tf.Variable(tf.ones([4, 1]))
    gradient = tf.IndexedSlices(tf.ones([4, 1]), tf.constant([1, 1, 1, 1]), tf.constant([4, 1]))
    optimizer = tf_keras.optimizers.SGD(1.0, **{option: 0.1})
    optimizer.apply_gradients([(gradient, table)])
    assert 1 - float(table[1, 0]) == pytest.approx(moved, abs=1e-3)
