"""Stages of a closure on traced steps: weights, rows and counts are those of a few lines of NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import counting
import numpy as np
import pytest
import tensorflow as tf
from support import run_config

from psrun.closures import server_updates
from psrun.closures.input_streams import Stream
from psrun.closures.measurements import StalenessMeter
from psrun.closures.server_updates import AppliedSteps, GradientQueue
from psrun.closures.stage import Stage
from psrun.closures.stages import Closure
from psrun.closures.worker_variables import DenseBundles, RowPrefetch, WorkerLocalVariables, read_as_a_whole
from psrun.cluster import placement, strategy
from psrun.data import loading
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import metric_variables
from psrun.tf_internals import keras

pytestmark = pytest.mark.inprocess

EXAMPLES, BATCH, RATE = 12, 4, 0.1
FIRST = {"a": 0.5, "b": 0.25, "steps": 1.0}
IDS = np.array([[0, 1, 1, 2], [1, 1, 1, 3], [2, 3, 4, 1], [0, 0, 1, 5]])
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def dense_apart(sizes: Sequence[int], held_bytes: Sequence[int], num_placed: int) -> int:
    """A rule that leaves the second server only the dense variable."""
    return int(list(sizes) == [4])


class Given(Stream):
    """The ids of a closure's batches are its argument."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"ids": tf.TensorSpec([None, None], tf.int64)}

    def taker(self, iterator: Any, first: Any, inputs: Any) -> Any:
        numbers = itertools.count()

        def take() -> Any:
            ids = inputs["ids"][first + next(numbers)]
            return dict.fromkeys(counting.TABLES, ids), tf.zeros([tf.size(ids), 1])

        return take


class OnServers:
    """A model of two tables and a dense variable on two parameter servers; its loss is the mean of the squared sums."""

    def __init__(self, spec: Any, *pieces: str, rule: placement.Rule = placement.greedy, replicas: int = 1) -> None:
        arguments = counting.arguments(*pieces, examples=EXAMPLES, batch=BATCH)
        run = run_config(*[each for each in arguments if not each.startswith(("model.loss", "optimizer.learning"))],
                         f"optimizer.learning_rate={RATE}", f"cluster.replicas_per_worker={replicas}")  # fmt: skip
        start_afresh(1)
        distribution = strategy.parameter_servers(spec, run.partitioner, rule, replicas)
        self.program = build_program(run, loading.load_source(run), distribution)
        build_state(self.program)
        self.coordinator = distribution.coordinator
        self.layers = {name: self.program.network.get_layer(f"table_{name}") for name in counting.TABLES}
        (self.dense,) = [each for each in self.program.network.trainable_variables if "steps" in each.name]
        for name, layer in self.layers.items():
            for shard in getattr(layer.embeddings, "variables", [layer.embeddings]):
                shard.assign(tf.fill(shard.shape, FIRST[name]))
        self.dense.assign([FIRST["steps"]])

    def closure(self, *stages: Stage) -> Closure:
        local = WorkerLocalVariables(
            metric_variables(self.program), keras.counters_of_optimizer(self.program.optimizer)
        )
        return Closure(self.program, Given(), [*stages, local], None, tf.TensorSpec([], tf.int32))

    def run(self, closure: Closure, function: Any, ids: np.ndarray, **inputs: Any) -> None:
        given = {"iterator": tf.constant(0), "ids": tf.constant(ids, tf.int64), **inputs}
        self.coordinator.schedule(function, args=closure.flat(given))
        self.coordinator.join()

    def values(self) -> dict[str, np.ndarray]:
        """The rows of the tables by id, and the dense variable."""
        values = {"steps": self.dense.numpy()}
        for name, layer in self.layers.items():
            shards = [each.numpy() for each in getattr(layer.embeddings, "variables", [layer.embeddings])]
            values[name] = np.concatenate(shards)[layer.position(tf.range(EXAMPLES)).numpy(), 0]
        return values


class ByHand:
    """The same model in NumPy."""

    def __init__(self) -> None:
        self.values = {name: np.full(EXAMPLES, FIRST[name]) for name in counting.TABLES}
        self.values["steps"] = np.array([FIRST["steps"]])
        self.losses: list[float] = []

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return self.values["a"][ids] + self.values["b"][ids]

    def gradient(self, rows: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """Of each prediction."""
        predictions = rows + dense
        self.losses.append(float(np.mean(predictions**2)))
        return 2 * predictions / len(predictions)

    def update_rows(self, ids: np.ndarray, gradient: np.ndarray, rate: float = RATE) -> None:
        for name in counting.TABLES:
            np.subtract.at(self.values[name], ids, rate * gradient)

    def step(self, ids: np.ndarray) -> None:
        gradient = self.gradient(self.rows(ids), self.values["steps"])
        self.update_rows(ids, gradient)
        self.values["steps"] -= RATE * gradient.sum()

    def check(self, on_servers: OnServers) -> None:
        found = on_servers.values()
        for name, values in self.values.items():
            np.testing.assert_allclose(found[name], values, **CLOSE, err_msg=name)


CASES = {
    "each step": ((), 1, {0: 4}),
    "dense weights every two steps": (("trainer.dense_sync_every=2",), 2, {0: 2, 1: 2}),
    "rows a step ahead": (("trainer.prefetch_rows=true",), 1, {0: 1, 1: 3}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_unrolled_steps_are_those_of_numpy_and_are_counted(cluster_spec, monkeypatch, case):
    monkeypatch.setattr(server_updates, "_SETTLED_S", 0.0)
    pieces, every, histogram = CASES[case]
    ahead = "trainer.prefetch_rows=true" in pieces
    servers = OnServers(cluster_spec[1], *pieces, "partitioner=none", rule=dense_apart)
    meter = StalenessMeter(1)
    applied = AppliedSteps(servers.program, most=2, is_plain=True)
    stages = [applied, DenseBundles(servers.program, read_as_a_whole(servers.program), meter, every, rows_ahead=ahead)]
    stages += [RowPrefetch(servers.program)] if ahead else []
    closure = servers.closure(*stages)
    function = closure.trace(4, num_steps=4)
    execution = applied.claim(4)
    servers.run(closure, function, IDS, counts=tf.constant(execution.slot))

    expected = ByHand()
    rows = expected.rows(IDS[0])
    pushed = 0.0
    dense = np.zeros(1)
    for step, ids in enumerate(IDS):
        if step % every == 0:
            dense = expected.values["steps"].copy()
        gradient = expected.gradient(rows if ahead else expected.rows(ids), dense)
        pushed += gradient.sum()
        if ahead and step < 3:
            rows = expected.rows(IDS[step + 1])  # requested before this step is applied
        pushes = (step + 1) % every == 0
        expected.update_rows(ids, gradient)
        if pushes:
            expected.values["steps"] -= RATE * pushed
            pushed = 0.0
    expected.check(servers)
    assert meter.take() == {"worker-0": histogram}
    assert meter.take() == {}
    assert applied.done(execution, 0.0) == {0: 4, 1: 4}
    assert servers.program.iterations == 4
    (loss,) = servers.program.network.compiled_loss.metrics
    assert float(loss.result()) == pytest.approx(np.mean(expected.losses), rel=1e-5)


def test_a_server_applies_a_step_when_it_has_all_of_its_gradients(cluster_spec):
    """Values and indices of both tables arrive in one operation for each step."""
    servers = OnServers(cluster_spec[1], "partitioner=fixed_shards")
    closure = servers.closure(AppliedSteps(servers.program, most=2, is_plain=True))
    graph = closure.trace(2, num_steps=2).graph
    gates = [each for each in graph.get_operations() if each.type == "IdentityN" and "/job:ps" in each.device]
    by_server = {task: sorted(len(each.inputs) for each in gates if placement.task_of(each.device) == task)
                 for task in ("ps-0", "ps-1")}  # fmt: skip
    with_dense = placement.task_of(servers.dense.device)
    assert by_server == {task: [5, 5] if task == with_dense else [4, 4] for task in by_server}


def test_a_step_that_one_server_lacks_is_applied_there_alone(cluster_spec, monkeypatch):
    monkeypatch.setattr(server_updates, "_SETTLED_S", 0.0)
    servers = OnServers(cluster_spec[1], "partitioner=none", rule=dense_apart)
    applied = AppliedSteps(servers.program, most=2, is_plain=True)
    closure = servers.closure(applied)
    execution = applied.claim(1)
    servers.run(closure, closure.trace(1, num_steps=1), IDS[:1], counts=tf.constant(execution.slot))
    expected = ByHand()
    expected.step(IDS[0])
    expected.check(servers)

    with applied.skipping({0}):
        completing = closure.trace(1, num_steps=1)
    execution = applied.claim(1, {1})
    servers.run(closure, completing, IDS[1:2], counts=tf.constant(execution.slot))
    assert applied.done(execution, 0.0) == {1: 1}
    gradient = expected.gradient(expected.rows(IDS[1]), expected.values["steps"])
    expected.values["steps"] -= RATE * gradient.sum()
    expected.check(servers)


class Meanwhile(Stage):
    """Two updates of other workers, one of the dense variable, are applied while gradients are computed."""

    def __init__(self, servers: OnServers, meter: StalenessMeter) -> None:
        self._dense = servers.dense
        self._meter = meter

    def gradients(self, apply: Any) -> Any:
        def late(pairs: Any, *arguments: Any, **options: Any) -> Any:
            with tf.device(self._dense.device):
                tf.raw_ops.AssignAddVariableOp(resource=self._dense.handle, value=tf.constant([0.5]))
            with tf.device(self._meter.device):
                _ = self._meter._next(), self._meter._next()
            return apply(pairs, *arguments, **options)

        return late


def test_late_gradients_are_compensated_and_applied_at_a_smaller_rate(cluster_spec):
    late = ("optimizer.delay_compensation=0.7", "optimizer.staleness_aware=true")
    servers = OnServers(cluster_spec[1], "partitioner=fixed_shards", *late)
    meter = StalenessMeter(1)
    closure = servers.closure(
        DenseBundles(servers.program, read_as_a_whole(servers.program), meter, 1, rows_ahead=False),
        Meanwhile(servers, meter),
    )
    servers.run(closure, closure.trace(2, num_steps=2), IDS[:2])
    expected = ByHand()
    for ids in IDS[:2]:
        gradient = expected.gradient(expected.rows(ids), expected.values["steps"])
        expected.update_rows(ids, gradient, RATE / 2)
        total = gradient.sum()
        expected.values["steps"] += 0.5 - RATE / 2 * (total + 0.7 * total**2 * 0.5)
    expected.check(servers)
    assert meter.take() == {"worker-0": {2: 2}}


@pytest.mark.parametrize("has_weights", [False, True])
def test_queued_gradients_make_an_update_once(cluster_spec, warnings_of_tensorflow, has_weights):
    """Gradients that come twice, and those that no update may have, are dropped; the others wait."""
    servers = OnServers(cluster_spec[1], "partitioner=fixed_shards", "consistency=sync")
    queue = GradientQueue(servers.program, has_weights=has_weights)
    closure = servers.closure(queue)
    push = closure.trace(1, num_steps=1)
    average = queue.apply_function()
    expected = ByHand()

    def push_gradients(batches: dict[int, int], *numbers: int) -> None:
        for number in numbers:
            servers.run(closure, push, IDS[[batches[number]]], gradient=tf.constant(number, tf.int64))

    def update(gradients: dict[int, np.ndarray], batches: dict[int, int], kept: list[int]) -> None:
        weights = [0.5**place if has_weights else 1.0 for place in range(len(gradients))]
        average(tf.constant(list(gradients), tf.int64), tf.constant(kept, tf.int64), tf.constant(weights))
        for (number, gradient), weight in zip(gradients.items(), weights):
            mean = gradient * weight / len(gradients)
            expected.update_rows(IDS[batches[number]], mean)
            expected.values["steps"] -= RATE * mean.sum()
        expected.check(servers)

    def gradients_now(batches: dict[int, int], *numbers: int) -> dict[int, np.ndarray]:
        dense = expected.values["steps"].copy()
        return {number: expected.gradient(expected.rows(IDS[batches[number]]), dense) for number in numbers}

    batches = {0: 0, 1: 3, 2: 1, 3: 2, 4: 0, 5: 3}
    push_gradients(batches, 2, 4, 0, 2, 1)
    old = gradients_now(batches, 4)
    update(gradients_now(batches, 0, 2), batches, kept=[3, 4])  # number 1 is too old
    push_gradients(batches, 0, 3, 5)
    first = gradients_now(batches, 5)
    update({**gradients_now(batches, 3), **old}, batches, kept=[5])
    push_gradients(batches, 5)
    update(first, batches, kept=[])
    assert servers.program.iterations == 3
    assert warnings_of_tensorflow == []


@pytest.mark.parametrize("num_examples", [7, 1])
def test_parts_of_a_batch_on_replicas_make_the_step_of_the_whole(replicated_spec, num_examples):
    """Three parts of different sizes; of one example, two of them are empty."""
    servers = OnServers(replicated_spec, "partitioner=fixed_shards", replicas=3)
    closure = servers.closure()
    ids = IDS.reshape(1, -1)[:, :num_examples]
    servers.run(closure, closure.trace(1, num_steps=1), ids)
    expected = ByHand()
    expected.step(ids[0])
    expected.check(servers)
