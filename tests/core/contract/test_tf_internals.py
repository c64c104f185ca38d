"""Private names and texts of TensorFlow and tf-keras that psrun depends on: each exists and works as documented."""

from __future__ import annotations

import ast
import inspect
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import portpicker
import pytest
import tensorflow as tf
import tf_keras
from bounds import BOUND_S
from tensorflow.python.autograph.pyct import loader
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels

from psrun.cluster import strategy
from psrun.cluster.probe import ServerStatus, statuses
from psrun.config import choices
from psrun.tf_internals import (
    checkpoints,
    coordinator,
    keras,
    messages,
    modules,
    profiler,
    servers,
    strategies,
    tracing,
)
from psrun.tf_internals.coordinator import ClosureQueue, FailureHandler
from psrun.tf_internals.names import require
from psrun.tf_internals.strategies import takes_scattered

pytestmark = pytest.mark.tensorflow
inprocess = pytest.mark.inprocess
WHOLE = choices.NoPartitioner("none")


def test_a_private_name_that_is_gone_is_an_error_with_the_installed_versions():
    with pytest.raises(RuntimeError, match=r"object has no _gone; installed: tensorflow 2\.\d+"):
        require(object(), "__class__", "_gone")


def test_the_files_that_autograph_wrote_are_removed(tmp_path, monkeypatch):
    """Also their bytecode, and the folder for it once it is empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module, path = loader.load_source("x = 1\n", delete_on_exit=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cached = Path(module.__spec__.cached)
    assert (Path(path).exists(), cached.exists()) == (True, True)
    other = cached.with_name("other.pyc")
    other.touch()
    modules.remove_generated_files()
    assert list(tmp_path.rglob("*.py*")) == [other]
    other.unlink()
    modules.remove_generated_files()
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_process_that_was_killed_are_removed_by_the_next_one(tmp_path):
    code = """
import os, sys
from psrun.tf_internals import modules
from tensorflow.python.autograph.pyct import loader
modules.keep_generated_files_together()
def write():
    loader.load_source("x = 1", delete_on_exit=True)
    return sorted(os.listdir(os.environ["TMPDIR"]))
if os.fork() == 0:
    write()
    os.kill(os.getpid(), 9)
os.wait()
(killed,) = os.listdir(os.environ["TMPDIR"])
(own,) = write()
assert killed != own
modules.remove_abandoned_folders()
assert os.listdir(os.environ["TMPDIR"]) == [own]
modules.remove_generated_folder()
os._exit(len(os.listdir(os.environ["TMPDIR"])))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=BOUND_S, check=True)


def test_tensorflow_is_imported_without_keras_where_that_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    modules.import_without_keras()
    with pytest.raises(ImportError):
        import tf_keras  # noqa: F401


def test_rarely_used_modules_load_when_they_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "_RARELY_USED", ("rarely_used_here", "rarely_used_here.part", "missing_here"))
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "rarely_used_here"
    package.mkdir()
    for name, module in (("__init__", "package"), ("part", "part")):
        (package / f"{name}.py").write_text(f"import sys\nsys.loaded_here.append('{module}')\nVALUE = 1\n")
    loaded = []
    monkeypatch.setattr(sys, "loaded_here", loaded, raising=False)
    finders = [*sys.meta_path]
    with modules.lazy_imports():
        import rarely_used_here

        with pytest.raises(ModuleNotFoundError):
            import missing_here  # noqa: F401
    import rarely_used_here

    assert inspect.getmodule(test_rarely_used_modules_load_when_they_are_used).__name__ == __name__
    assert (loaded, sys.meta_path, hasattr(rarely_used_here, "__file__")) == ([], finders, True)
    import rarely_used_here.part

    assert loaded == ["package", "part"]
    assert (rarely_used_here.VALUE, rarely_used_here.part.VALUE) == (1, 1)
    assert type(rarely_used_here) is type(sys)
    with pytest.raises(AttributeError):
        rarely_used_here.missing  # noqa: B018
    for name in ("rarely_used_here", "rarely_used_here.part"):
        del sys.modules[name]


@pytest.mark.thorough
def test_a_chief_imports_modules_that_it_rarely_uses_only_when_they_are_used(tmp_path):
    script = (
        "from psrun import process; process.prepare()\n"
        "from psrun.roles import table\n"
        "from psrun.tf_internals import modules\n"
        "table.import_role('chief')\n"
        "import sys, numpy as np, tf_keras\n"
        "found = [name for name in modules._RARELY_USED if name in sys.modules]\n"
        "print([name for name in modules._RARELY_USED if name not in found])\n"
        "lazy = lambda: [name for name in found if type(sys.modules[name]).__name__ == '_LazyModule']\n"
        "import tensorflow as tf\n"
        "print(tf.function(lambda: tf.constant(1))().numpy(), lazy() == found)\n"
        "model = tf_keras.Sequential([tf_keras.layers.Dense(1)])\n"
        "import pandas\n"
        "print(model.predict(pandas.DataFrame({'a': [1.0, 2.0]}), verbose=0).shape)\n"
        "model.save_weights(sys.argv[1]); print('h5py' not in lazy())\n"
        "image = np.arange(12.0).reshape(2, 2, 3)\n"
        "moved = tf_keras.preprocessing.image.apply_affine_transform(image, tx=1, row_axis=0, col_axis=1,"
        " channel_axis=2)\n"
        "print(moved.shape)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "weights.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    not_imported, *used = done.stdout.splitlines()
    # fsspec comes with TensorBoard, which TensorFlow 2.22 imports; with 2.21 the tracker does. Another name here can
    # leave psrun.tf_internals.modules.
    comes_later = "['fsspec']" if tf.__version__.startswith("2.21.") else "[]"
    assert not_imported == comes_later, done.stderr
    assert used == ["1 True", "(2, 1)", "True", "(2, 2, 3)"], done.stderr


def test_libraries_are_loaded_before_the_import_of_tensorflow_without_pythons_lock_and_without_a_thread_that_stays():
    script = (
        "from psrun.tf_internals import modules\n"
        "import os, sys, threading, time\n"
        "held = []\n"
        "loading = modules.load_libraries()\n"
        "while loading.is_alive(): held.append(0)\n"  # with Python's lock held, this would be a few iterations
        "maps = open('/proc/self/maps').read()\n"
        "print([name in maps for name in modules._LIBRARIES], 'tensorflow' in sys.modules, len(held) > 10_000)\n"
        # The system ends a thread a little after Python does.
        f"end = time.monotonic() + {BOUND_S / 2}\n"
        "while len(os.listdir('/proc/self/task')) > 1 and time.monotonic() < end: time.sleep(0.01)\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.stdout.splitlines() == ["[True, True] False True", "1 1"], done.stderr


def test_a_process_that_only_serves_has_all_kernels_and_not_the_public_api():
    script = (
        "from psrun.tf_internals import modules; modules.import_for_servers()\n"
        "from psrun.roles import server\n"
        "from tensorflow.python.framework import kernels\n"
        "import sys, tensorflow\n"
        "print([(kernel.op, kernel.device_type) for kernel in kernels.get_all_registered_kernels().kernel])\n"
        "print([name for name in sys.modules if name.startswith(('tensorflow._api', 'tf_keras.'))])\n"
        "tensorflow.constant\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=False)
    serving, imported = map(ast.literal_eval, done.stdout.splitlines())
    everywhere = Counter((kernel.op, kernel.device_type) for kernel in kernels.get_all_registered_kernels().kernel)
    # XLA registers its own at its first use. One kernel is in a library by itself, of TensorFlow Lite's experiments.
    missing = {op for op, device in everywhere - Counter(serving) if not device.startswith("XLA")}
    assert missing <= {"AudioMicrofrontend"}
    assert len(serving) > 10_000
    assert imported == []
    assert "tensorflow.constant: this process only serves" in done.stderr


@pytest.mark.parametrize("named", ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "TF_USE_MODULAR_FILESYSTEM", None])
def test_a_server_imports_tensorflow_whole_where_it_has_plug_ins(tmp_path, monkeypatch, named):
    if named:
        monkeypatch.setenv(named, "1")
    else:
        (tmp_path / "tensorflow-plugins").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    modules.import_for_servers()
    assert "tensorflow" not in sys.modules


# variables and optimizers


def test_an_optimizer_with_slots_of_its_own_keeps_keras_from_making_any():
    class Own(keras.SlotOptimizer, tf_keras.optimizers.Adagrad):
        pass

    optimizer, variables = Own(0.1), [tf.Variable([1.0]), tf.Variable([2.0])]
    tf_keras.optimizers.Optimizer.build(optimizer, variables)
    assert not optimizer.has_slots
    optimizer.slots_made()
    optimizer.build(variables)
    assert optimizer.has_slots
    assert not hasattr(optimizer, keras.ADAGRAD_ACCUMULATORS)
    assert [optimizer.slot_index(each) for each in variables] == [0, 1]
    assert optimizer.variable_key(variables[0]) != optimizer.variable_key(variables[1])
    with pytest.raises(KeyError):
        optimizer.slot_index(tf.Variable([3.0]))
    optimizer.beside = optimizer.untracked({"a": variables[0]})
    assert "beside" not in optimizer._trackable_children()
    twice = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([0, 0]), tf.constant([1, 1]))
    seen = []
    optimizer.update_step = lambda gradient, variable: seen.append(gradient)
    optimizer.apply_gradients([(twice, variables[0])])
    assert seen[0].indices.shape == [2]


KINDS = tf_keras.optimizers
SCALED = tf_keras.mixed_precision.LossScaleOptimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: KINDS.Adam(0.1),
        lambda: KINDS.Adam(KINDS.schedules.ExponentialDecay(0.1, 10, 0.5)),
        lambda: SCALED(KINDS.Adam(0.1)),
    ],
)
def test_counters_of_an_optimizer_are_its_steps_and_its_learning_rate(make):
    optimizer = make()
    optimizer.build([tf.Variable(1.0)])
    iterations, rate = keras.counters_of_optimizer(optimizer)
    assert iterations is optimizer.iterations
    assert float(rate) == pytest.approx(0.1)


def test_the_graphs_of_functions_and_of_branches_are_reported_apart():
    graphs, outer = [], []

    def function(x):
        outer.append(tf.compat.v1.get_default_graph())

        def branch():
            graphs.append(tf.compat.v1.get_default_graph())
            assert tracing.in_outermost_graph(tf.compat.v1.get_default_graph) is outer[0]
            return x + 1

        return tf.cond(x > 0, branch, lambda: x)

    tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([]))
    assert isinstance(outer[0], tracing.FuncGraph)
    assert not isinstance(outer[0], tracing.ControlFlowFuncGraph)
    assert isinstance(graphs[0], tracing.ControlFlowFuncGraph)
    assert graphs[0].outer_graph is outer[0]
    assert {inner.name for _, inner in graphs[0].captures} <= {each.name for each in graphs[0].inputs}


# cluster


def test_the_options_of_servers_and_the_names_of_tables_can_be_set():
    strategies.disable_thread_spinning()
    assert context.context().config.experimental.disable_thread_spinning
    strategies.name_tables_uniquely()
    tables = [tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1) for _ in range(2)]
    assert len({table._shared_name for table in tables}) == 2


@inprocess
def test_branches_of_a_step_look_up_in_tables(cluster_spec):
    made = strategy.parameter_servers(cluster_spec[2], WHOLE)
    with made.strategy.scope():
        words = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2]))
        table = tf.lookup.StaticHashTable(words, -1)
        total = tf.Variable(0)

    @tf.function
    def step():
        for index in tf.range(3):
            if index > 0:
                total.assign_add(table.lookup(tf.constant("b")))

    made.coordinator.schedule(step)
    made.coordinator.join()
    assert int(total) == 4
    step()  # in the process of the coordinator, with its own copy
    assert int(total) == 8


@pytest.mark.parametrize(("takes", "skips"), [("", False), (", **options", True), (", name=None, *, rest=0", False)])
def test_aggregation_is_skipped_also_by_an_optimizer_that_passes_options_on(takes, skips):
    names: dict[str, object] = {}
    exec(f"def apply_gradients(self, grads_and_vars{takes}): pass", names)
    own = type("Own", (tf_keras.optimizers.SGD,), {"apply_gradients": names["apply_gradients"]})()
    assert keras.without_aggregation(own) == ({"skip_gradients_aggregation": True} if skips else {})
    assert keras.without_aggregation(tf_keras.optimizers.SGD())


def test_a_queue_has_its_state_before_the_threads_of_workers_call_its_methods(monkeypatch):
    states: list[dict[str, object]] = []
    monkeypatch.setattr(coordinator, "replace", lambda owner, name, around: states.append(dict(vars(owner))))
    queue = cluster_coordinator._CoordinatedClosureQueue()
    ClosureQueue.of(SimpleNamespace(_cluster=SimpleNamespace(closure_queue=queue, workers=[])))
    (state,) = states
    assert {"ended", "_rule", "_scheduling", "_busy_since_s"} <= set(state)


@inprocess
def test_workers_take_closures_by_a_rule(cluster_spec):
    def choose(worker, queued):
        return next((place for place, mark in enumerate(queued) if worker == 1 or mark is None), None)

    finished, gone = [], []
    rule = SimpleNamespace(
        choose=choose, finished=lambda *of: bool(finished.append(of)), left=lambda worker: bool(gone.append(worker)),
        returned=lambda worker: None, is_over=lambda mark: mark == "over",
    )  # fmt: skip
    coordinator = strategy.parameter_servers(cluster_spec[2], WHOLE).coordinator
    queue = ClosureQueue.of(coordinator)
    assert ClosureQueue.of(coordinator) is queue
    queue.follow(rule)

    @tf.function
    def worker():
        return tf.distribute.coordinator.experimental_get_current_worker_index()

    with queue.marking("mine"):
        marked = [coordinator.schedule(worker) for _ in range(5)]
    others = [coordinator.schedule(worker) for _ in range(20)]
    coordinator.join()
    assert [value.fetch() for value in marked] == [1] * 5
    assert 0 in [value.fetch() for value in others]
    queue.joined()
    assert set(queue.waited_s()) == {1}
    coordinator._cluster.closure_queue.clear_tag_unlocked(0)  # as the thread of a lost worker
    assert gone == [0]
    coordinator.schedule(worker)
    coordinator.join()
    assert set(finished) == {(1, "mine")}


@inprocess
def test_a_coordinator_waits_for_workers_by_the_method_that_is_replaced(cluster_spec, monkeypatch):
    distribution = strategy.parameter_servers(cluster_spec[1], WHOLE)
    coordinator, spec = distribution.coordinator, tf.TensorSpec([2], tf.int64)
    handler, called = coordinator._cluster.failure_handler, []
    assert isinstance(handler, FailureHandler)

    def wait_on_failure(self, *, on_transient_failure_fn, on_recovery_fn, **options):
        on_transient_failure_fn()
        on_recovery_fn()

    waiting = {
        "on_transient_failure_fn": lambda: called.append("transient"),
        "worker_device_name": "/job:worker/task:0",
    }
    with monkeypatch.context() as patch:  # no longer: the threads of all coordinators use it
        patch.setattr(cluster_coordinator.WorkerPreemptionHandler, "wait_on_failure", wait_on_failure)
        handler.wait_on_failure(**waiting, on_recovery_fn=lambda: called.append("recovered"))
    assert called == ["recovered", "transient", "recovered"]
    iterator = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(4).batch(2, True)))
    assert strategies.iterator_spec(iterator) == tf.data.IteratorSpec(spec)


@inprocess
def test_the_incarnation_distinguishes_servers(cluster_spec):
    addresses = dict(enumerate(cluster_spec[2].job_tasks("worker")))
    nowhere = f"localhost:{portpicker.pick_unused_port()}"
    ask = {"timeout_s": 10.0, "incarnation": servers.incarnation}
    first, again = (statuses({**addresses, "nowhere": nowhere}, **ask) for _ in range(2))
    assert first == again
    assert first["nowhere"] == ServerStatus(answers=False, refused=True)
    assert first[0].answers
    assert None not in (first[0].incarnation, first[1].incarnation)
    assert first[0].incarnation != first[1].incarnation


# Keras


def test_the_containers_of_metrics_and_losses_know_the_outputs():
    inputs = tf_keras.Input([2])
    outputs = {name: tf_keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    network = tf_keras.Model(inputs, outputs)
    network.compile("sgd", {"a": "mse", "b": "mae"}, weighted_metrics={"a": ["mse"]})
    label = prediction = {name: tf.ones([3, 1]) for name in ("a", "b")}
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, label)
    container = keras.built_metrics({"a": ["mse"]}, network, spec, spec, ["own"])
    assert [metric.name for metric in container.metrics] == ["own"]
    container.update_state(label, prediction)
    network.compiled_loss.build(prediction)
    losses = keras.losses_by_output(network.compiled_loss, label, {"a": tf.zeros([3, 1]), "b": tf.ones([3, 1])}, None)
    assert {name: float(loss) for name, loss in losses.items()} == {"a": 1.0, "b": 0.0}
    assert all(float(metric.result()) == 0.0 for metric in network.compiled_loss.metrics)


def test_a_backup_has_the_position_where_fit_resumes(tmp_path):
    class Stopped(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    network = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=[1])])
    network.compile("sgd", "mse")
    backup = tf_keras.callbacks.BackupAndRestore(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        network.fit(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=2, epochs=2, verbose=0, callbacks=[backup, Stopped()])
    again = tf_keras.callbacks.BackupAndRestore(str(tmp_path))
    again.set_model(network)
    again.on_train_begin()
    assert keras.position_in_backup(network, 2) == (1, 0)


def test_a_save_holds_the_lock_while_it_looks_for_what_to_save(tmp_path):
    held = []

    class Watched(tf_keras.Sequential):
        def _trackable_children(self, save_type="checkpoint", **options):
            held.append((save_type, lock.locked()))
            return super()._trackable_children(save_type, **options)

    network = Watched([tf_keras.layers.Dense(1, input_shape=[1])])
    lock = keras.lock_of_saves(network)
    network.save(tmp_path / "saved", save_format="tf")
    assert ("savedmodel", True) in held
    assert all(locked == (save_type == "savedmodel") for save_type, locked in held)
    assert not lock.locked()


def test_fit_calls_the_train_function_and_counts_steps_as_it_is_reported():
    network, seen = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=[1])]), []
    network.compile("sgd", "mse", steps_per_execution=2)

    def execution(iterator):
        seen.append(int(network.steps_per_execution))
        return {"loss": tf.constant(0.0)}

    class Unread(tf_keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kinds.append(type(logs["loss"]))

    kinds, callback = [], Unread()
    assert not keras.takes_unread_logs(callback)
    keras.give_unread_logs(callback)
    assert keras.takes_unread_logs(callback)
    keras.replace_train_function(network, execution)
    data = tf.data.Dataset.from_tensors(([[1.0]], [[1.0]])).repeat()
    network.fit(data, steps_per_epoch=3, verbose=0, callbacks=[callback])
    assert seen == [2, 1]
    assert not any(issubclass(kind, float) for kind in kinds)
    again = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=[1])])
    again.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Empty logs") as raised:
        again.fit(data.take(0), steps_per_epoch=1, verbose=0)
    assert messages.epoch_without_steps(raised.value)


# data and checkpoints


def test_files_are_shared_out_and_the_message_about_too_few_is_understood(tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_text(f"{path.name}\n")
    lines = tf.data.Dataset.from_tensor_slices([str(path) for path in paths]).flat_map(tf.data.TextLineDataset)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    lines = lines.with_options(options)
    assert [line.numpy() for line in strategies.share_files(lines, 2)] == [b"a"]
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iter(strategies.share_files(lines, 3)))
    assert messages.workers_short_of_files(str(raised.value)) == 3
    assert messages.workers_short_of_files("something else") is None
    with pytest.raises(tf.errors.NotFoundError):
        strategies.share_files(tf.data.Dataset.range(3).with_options(options), 2)


@pytest.mark.parametrize("kind", [tf_keras.optimizers.Adam, tf_keras.optimizers.legacy.Adam])
def test_a_checkpoint_names_its_values_and_its_steps(tmp_path, kind):
    """Another program may have written it, with a legacy optimizer."""
    optimizer = kind(0.1)
    variable = tf.Variable([1.0], name="weight")
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    optimizer.iterations.assign(7)
    path = tf.train.Checkpoint(optimizer=optimizer, held=variable).write(str(tmp_path / "one"))
    reader = tf.train.load_checkpoint(path)
    assert checkpoints.iterations_in_checkpoint(reader) == 7
    values = checkpoints.values_in_checkpoint(reader)
    assert values["held/.ATTRIBUTES/VARIABLE_VALUE"] == "weight"
    assert len(values) == len(tf.train.list_variables(path)) - 1  # without the graph of objects


# messages


def test_texts_of_errors_are_those_of_this_tensorflow():
    with pytest.raises(tf.errors.OutOfRangeError) as ended:
        tf.function(lambda: next(iter(tf.data.Dataset.range(0))))()
    assert messages.data_ended(messages.gist(str(ended.value)))
    with pytest.raises(tf.errors.InvalidArgumentError) as failed:
        tf.debugging.check_numerics(tf.constant(float("nan")), "ours")
    assert messages.reason_of(failed.value).startswith("ours")
    assert "[Op:" in failed.value.message
    source = inspect.getsource(cluster_coordinator)
    assert "Start cancelling closures due to error %r: %s" in source
    assert "processing closure: %r:%s" in source
    error = tf.errors.CancelledError(None, None, "later")
    assert messages.gave_up_for(f"Start cancelling closures due to error {error!r}: the first") == "the first"
    assert messages.gave_up_for("something else") is None
    assert logging.getLogger(messages.LOGGER) is tf.get_logger()


def test_elements_are_added_to_plain_variables_and_not_to_those_of_replicas():
    options = {
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.SUM,
    }
    plain = tf.Variable([[0.0, 0.0]], **options)
    assert takes_scattered(plain)
    plain.scatter_nd_add([[0, 1], [0, 1]], [1.0, 2.0])
    assert plain.numpy().tolist() == [[0, 3]]
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = tf.Variable([[0.0, 0.0]], **options)
    assert not takes_scattered(mirrored)


def test_the_errors_of_lost_tasks_and_cancelled_steps_are_reported_apart():
    nowhere = tf.errors.UnavailableError(None, None, "Socket closed")
    inner = (
        "recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target /job:ps/replica:0/"
        "task:1: Executing non-communication op <ReduceDataset> originally returned UnavailableError, and was replaced "
        "by InternalError to avoid invoking TF network error handling logic."
    )
    assert messages.task_lost(nowhere)
    assert messages.task_lost(tf.errors.InternalError(None, None, inner))
    assert not messages.task_lost(tf.errors.InternalError(None, None, "/job:ps/replica:0/task:1: something else"))
    assert messages.task_in(inner) == "ps-1"
    assert messages.task_in("/job:localhost/replica:0/task:0/device:CPU:0") is None
    assert messages.cancelled(str(tf.errors.CancelledError(None, None, "Operation was cancelled")))


def test_autograph_converts_functions_of_users_and_none_of_psrun():
    def halved(number):
        if number % 2 == 0:  # only AutoGraph understands this
            return number // 2
        return number

    def of_psrun(number):
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            halved(number)
        return tf.data.Dataset.range(number).map(lambda each: halved(each)), tracing.converted(halved)(number)

    of_psrun.__module__ = "psrun.tf_internals.tracing"

    @tf.function
    def total(number):
        dataset, half = of_psrun(number)
        return half + dataset.reduce(tf.constant(0, tf.int64), lambda total, each: total + each)

    assert int(total(tf.constant(4, tf.int64))) == 2 + (0 + 1 + 1 + 3)
    assert int(tracing.unconverted(of_psrun)(tf.constant(4, tf.int64))[1]) == 2
    assert tracing.converted(halved) is halved  # outside of a traced function


def test_what_psrun_traces_and_writes_makes_tensorflow_log_no_warning(tmp_path, warnings_of_tensorflow):
    assert int(tracing.unconverted(lambda number: number + 1)(tf.constant(2))) == 3
    checkpoints.point_to(str(tmp_path), "ckpt-2", ["ckpt-1", "ckpt-2"])
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [Path(path).name for path in state.all_model_checkpoint_paths] == ["ckpt-1", "ckpt-2"]
    assert Path(state.model_checkpoint_path).name == "ckpt-2"
    assert warnings_of_tensorflow == []


def test_a_profile_is_that_of_the_public_api():
    assert profiler.profiler_v2.start is tf.profiler.experimental.start
    assert profiler.profiler_v2.stop is tf.profiler.experimental.stop


def test_an_error_that_is_marked_leaves_a_call_as_it_was_raised():
    class Refusing(tf_keras.layers.Layer):
        def call(self, x):
            raise keras.as_raised(ValueError("one sentence"))

    with pytest.raises(ValueError, match=r"^one sentence$"):
        Refusing()(tf.zeros([1]))


def test_keras3_does_not_list_the_states_of_recurrent_layers_as_weights():
    """Once it does, `psrun.keras3.model._states` would add them a second time: remove it."""
    import keras as keras3

    layer = keras3.layers.SimpleRNN(2, stateful=True)
    layer(tf.zeros([3, 4, 5]))
    assert [state.shape for state in layer.states] == [(3, 2)]
    assert len(layer.weights) == 3


def test_keras3_takes_the_gradient_at_the_value_that_a_layer_assigned():
    """Not through the assignment: `psrun.keras3.assignments` does the same."""
    import keras as keras3

    weight = keras3.Variable(3.0)
    with tf.GradientTape() as tape:
        weight.assign(weight * weight)
        loss = 2.0 * weight
    assert (float(loss), float(tape.gradient(loss, weight.value))) == (18.0, 2.0)
