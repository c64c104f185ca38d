"""Trains in this process in the order in which a virtual cluster would: with the real arithmetic, and late gradients.

The gradient of a batch is computed when a virtual worker reads the weights, and waits in this process until the cluster
applies it: no copies of weights are kept, only gradients in flight. The order is known before the steps run, so that
many of them, with the updates between them, are one call of a TensorFlow function.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from psrun.closures.input_streams import DealtInput
from psrun.closures.rules import Dropped
from psrun.closures.server_updates import require_separable, rows_and_dense
from psrun.closures.stage import Apply, Inputs, Stage, Step
from psrun.closures.stages import Closure
from psrun.closures.training_closures import Packed, StepKind
from psrun.cluster.strategy import Distribution
from psrun.config import choices
from psrun.errors import ConfigError, Problem
from psrun.optimizers import sparse
from psrun.program.compiled_model import Program
from psrun.virtual import prediction
from psrun.virtual.choice import Virtual
from psrun.virtual.losses import ServerLosses
from psrun.virtual.simulation import (
    CHIEF,
    Action,
    Applied,
    Arrived,
    Cancelled,
    Cluster,
    Discarded,
    Lost,
    Read,
)
from psrun.virtual.times import StepSeconds

_STEPS_OF_A_CALL = 32  # gradients; a call of a function takes as long as some small steps
_APPLY, _UPDATE_ROWS, _DISCARD_ROWS, _DISCARD = range(4)


class VirtualInput(DealtInput):
    """Batches in the order in which virtual workers read them."""

    def inputs(self) -> dict[str, tf.TensorSpec]:
        return {"places": tf.TensorSpec([None], tf.int64)}

    def begin(self, num_steps: tf.Tensor | int, inputs: Inputs) -> None:
        places = inputs["places"]
        pieces = tf.stack([places, tf.ones_like(places)], axis=1)
        tf.raw_ops.QueueEnqueueManyV2(handle=self._queue(), components=[pieces])

    def _place(self, first: tf.Tensor | int, index: int, inputs: Inputs) -> tf.Tensor:
        return inputs["places"][first + index]


class LateUpdates(Stage):
    """Keeps the gradients of each step, and applies the gradients whose time has come behind the step.

    Gradients are kept by number, in a map of TensorFlow's, which copies none of them.

    Args:
      averages: whether several gradients make an update, with weights.
      discards: whether gradients may be discarded.
      updates_rows: whether rows of tables are updated apart from the dense weights.
    """

    def __init__(self, program: Program, *, averages: bool, discards: bool, updates_rows: bool) -> None:
        if updates_rows:
            require_separable(program)
        self._program = program
        self._averages = averages
        self._discards = discards
        self._updates_rows = updates_rows
        self._name = f"psrun-{uuid.uuid4().hex}"
        self._dense: _Kept | None = None
        self._rows: _Kept | None = None
        self._inputs: Inputs = {}
        self._apply: Any = None
        self._staged: list[tf.Operation] = []
        self._compensation = sparse.compensation_factor(program.optimizer)

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The number of the gradient of each step; after each step, how many actions are done; and of each action: what
        it is, the end of its gradients in `gradients`, with `weights`, and the age of the oldest.
        """
        return {
            "numbers": tf.TensorSpec([None], tf.int64),
            "actions_until": tf.TensorSpec([None], tf.int32),
            "actions": tf.TensorSpec([None], tf.int32),
            "gradients_until": tf.TensorSpec([None], tf.int32),
            "ages": tf.TensorSpec([None], tf.int32),
            "gradients": tf.TensorSpec([None], tf.int64),
            "weights": tf.TensorSpec([None], tf.float32),
        }

    def begin(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.carried = tf.constant(0)

    def gradients(self, apply: Apply) -> Apply:
        self._apply = apply

        def keep(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            pairs = [pair for pair in grads_and_vars if pair[0] is not None]
            number = self._inputs["numbers"][self.carried]
            if self._updates_rows:
                rows, pairs = rows_and_dense(pairs, self._program.config.consistency.kind)
                self._rows = self._keep("rows", number, rows)
            self._dense = self._keep("gradients", number, pairs, with_weights=self._compensation > 0)
            return self._program.optimizer.iterations

        return keep

    def _keep(
        self, what: str, number: tf.Tensor, pairs: Sequence[tuple[Any, Any]], *, with_weights: bool = False
    ) -> _Kept:
        kept = _Kept(f"{self._name}-{what}", pairs, with_weights=with_weights)
        self._staged.append(kept.push(number, pairs))
        return kept

    def around(self, step: Step) -> Step:
        def late(batch: Any) -> Any:
            self._staged = []
            outputs = step(batch)
            graph = tf.compat.v1.get_default_graph()
            if len(self._staged) != 1 + self._updates_rows or any(each.graph is not graph for each in self._staged):
                message = "requires a step that applies gradients once, outside of branches and loops"
                raise ConfigError([Problem("cluster", f"'virtual' {message}; choose cluster=inprocess")])
            with tf.control_dependencies(self._staged):
                self._act(self.carried)
            assert self.carried is not None
            self.carried = self.carried + 1
            return outputs

        return late

    def _act(self, step: Any) -> None:
        """Does what comes behind a step."""
        until = self._inputs["actions_until"]
        first = tf.where(step > 0, until[tf.maximum(step - 1, 0)], 0)

        def act(number: tf.Tensor) -> tuple[tf.Tensor]:
            apply = self._update if self._averages else self._apply_one
            if self._discards:
                kinds = {
                    _APPLY: apply,
                    _UPDATE_ROWS: self._update_rows,
                    _DISCARD_ROWS: self._discard_rows,
                    _DISCARD: self._discard,
                }
                branches = {kind: _calling(do, number) for kind, do in kinds.items()}
                tf.switch_case(self._inputs["actions"][number], branches)
            else:
                apply(number)
            return (number + 1,)

        tf.while_loop(lambda number: number < until[step], act, (first,), parallel_iterations=1)

    def _range(self, action: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        until = self._inputs["gradients_until"]
        return tf.where(action > 0, until[tf.maximum(action - 1, 0)], 0), until[action]

    def _apply_one(self, action: tf.Tensor) -> None:
        assert self._dense is not None
        optimizer = self._program.optimizer
        pairs = self._dense.take(self._inputs["gradients"][action], self._compensation)
        with sparse.applying_late(optimizer, tf.cast(self._inputs["ages"][action], tf.int64)):
            self._apply(pairs)

    def _update(self, action: tf.Tensor) -> None:
        assert self._dense is not None
        first, end = self._range(action)
        self._apply(self._dense.mean(self._inputs["gradients"], self._inputs["weights"], first, end))

    def _update_rows(self, action: tf.Tensor) -> None:
        if self._rows is None:
            return
        first, _ = self._range(action)
        self._apply(self._rows.take(self._inputs["gradients"][first]))
        self._program.optimizer.iterations.assign_sub(1)  # they do not count as updates

    def _discard_rows(self, action: tf.Tensor) -> None:
        if self._rows is not None:
            first, _ = self._range(action)
            self._rows.take(self._inputs["gradients"][first])

    def _discard(self, action: tf.Tensor) -> None:
        assert self._dense is not None
        first, _ = self._range(action)
        self._dense.take(self._inputs["gradients"][first])


def _calling(do: Any, action: tf.Tensor) -> Any:
    def call() -> tf.Tensor:
        do(action)
        return tf.constant(0)

    return call


class _Kept:
    """The gradients of some variables, by number.

    Args:
      pairs: gradients of one step, with their variables.
      with_weights: whether the weights of dense gradients are kept, too.
    """

    def __init__(self, name: str, pairs: Sequence[tuple[Any, Any]], *, with_weights: bool = False) -> None:
        self._name = name
        self._with_weights = with_weights
        self._variables = [variable for _, variable in pairs]
        self._is_sparse = [isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs]
        self._parts: list[tuple[tf.DType, tf.TensorShape]] = []
        for gradient, variable in pairs:
            if isinstance(gradient, tf.IndexedSlices):
                self._parts.append((gradient.values.dtype, tf.TensorShape([None, *variable.shape[1:]])))
                self._parts.append((gradient.indices.dtype, tf.TensorShape([None])))
            else:
                self._parts.append((gradient.dtype, tf.TensorShape(variable.shape)))
                if with_weights:
                    self._parts.append((variable.dtype, tf.TensorShape(variable.shape)))

    def push(self, number: tf.Tensor, pairs: Sequence[tuple[Any, Any]]) -> tf.Operation:
        """Keeps the gradients of a step."""
        values: list[tf.Tensor] = []
        for gradient, variable in pairs:
            if isinstance(gradient, tf.IndexedSlices):
                values.append(tf.reshape(gradient.values, [-1, *variable.shape[1:]]))
                values.append(gradient.indices)
            else:
                values.append(gradient)
                if self._with_weights:
                    values.append(tf.convert_to_tensor(variable))
        return tf.raw_ops.MapStage(
            key=number,
            indices=list(range(len(values))),
            values=values,
            dtypes=[dtype for dtype, _ in self._parts],
            shared_name=self._name,
        )

    def _values(self, number: tf.Tensor) -> list[tf.Tensor]:
        values = tf.raw_ops.MapUnstage(
            key=number,
            indices=list(range(len(self._parts))),
            dtypes=[dtype for dtype, _ in self._parts],
            shared_name=self._name,
        )
        return [tf.ensure_shape(value, shape) for value, (_, shape) in zip(values, self._parts)]

    def take(self, number: tf.Tensor, compensation: float = 0.0) -> list[tuple[Any, Any]]:
        """The gradients of a step, which are not kept any longer.

        Args:
          compensation: as in `sparse.compensated_gradient`; requires weights.
        """
        return self._pairs(self._values(number), compensation)

    def _pairs(self, values: Sequence[tf.Tensor], compensation: float = 0.0) -> list[tuple[Any, Any]]:
        rest = iter(values)
        pairs = []
        for variable, is_sparse in zip(self._variables, self._is_sparse):
            if is_sparse:
                rows, indices = next(rest), next(rest)
                shape = tf.constant(variable.shape.as_list(), indices.dtype)
                pairs.append((tf.IndexedSlices(rows, indices, shape), variable))
            else:
                gradient = next(rest)
                if compensation:
                    now = tf.convert_to_tensor(variable)
                    gradient = sparse.compensated_gradient(gradient, now, next(rest), compensation)
                pairs.append((gradient, variable))
        return pairs

    def mean(self, numbers: tf.Tensor, weights: tf.Tensor, first: tf.Tensor, end: tf.Tensor) -> list[tuple[Any, Any]]:
        """The mean of the weighted gradients `first` to `end` of `numbers`; as of `GradientQueue`."""
        count = end - first
        arrays = []
        for dtype, shape in self._parts:
            arrays.append(tf.TensorArray(dtype, count, infer_shape=False, element_shape=shape))

        def take(index: tf.Tensor, *arrays: Any) -> tuple[Any, ...]:
            written = []
            for array, value in zip(arrays, self._values(numbers[first + index])):
                if value.dtype.is_floating:
                    value = value * tf.cast(weights[first + index], value.dtype)
                written.append(array.write(index, value))
            return index + 1, *written

        _, *arrays = tf.while_loop(
            lambda index, *_: index < count, take, (tf.constant(0), *arrays), parallel_iterations=1
        )
        values = []
        rest = iter(arrays)
        for is_sparse in self._is_sparse:
            array = next(rest)
            if is_sparse:
                rows = array.concat()
                values.append(rows / tf.cast(count, rows.dtype))
                values.append(next(rest).concat())
            else:
                stacked = array.stack()
                values.append(tf.reduce_sum(stacked, 0) / tf.cast(count, stacked.dtype))
        return self._pairs(values)


class VirtualClosures:
    """The closures of virtual workers; the interface of `TrainingClosures` to a training."""

    dealt_input = VirtualInput

    def __init__(self, distribution: Distribution, consistency: choices.ConsistencyChoice) -> None:
        self._num_workers = distribution.num_workers
        self._consistency = consistency
        self._steps: VirtualSteps | None = None

    def steps(self, kind: StepKind) -> VirtualSteps:
        if self._steps is not None:
            message = "'virtual' trains with one kind of step; choose trainer=custom_loop, or cluster=inprocess"
            raise ConfigError([Problem("cluster", message)])
        self._steps = VirtualSteps(kind, self._consistency, self._num_workers)
        return self._steps

    @property
    def _cluster(self) -> Cluster:
        assert self._steps is not None
        return self._steps.cluster

    def facts(self) -> dict[str, Any]:
        """As `TrainingClosures.facts`, in virtual seconds."""
        waited_s = {}
        for worker, seconds in self._cluster.waited_s.items():
            waited_s[f"worker-{worker}"] = round(seconds, 3)
        facts: dict[str, Any] = {"waited_s": waited_s}
        counts = self._cluster.counts
        assert self._steps is not None
        facts |= self._steps.losses()
        if self._consistency.averages:
            dropped = {f"worker-{worker}": counts.dropped[worker] for worker in range(self._num_workers)}
            facts |= {"gradients_applied": counts.num_applied, "updates_dropped": dropped}
        if self._consistency.queue.decay < 1 and counts.num_applied:
            facts["weight"] = round(counts.weight / counts.num_applied, 4)
        return facts

    def virtual_time(self) -> dict[str, float]:
        """As `TrainingClosures.virtual_time`."""
        assert self._steps is not None
        return self._steps.virtual_time()

    def prediction(self) -> Mapping[str, Any]:
        """As `TrainingClosures.prediction`."""
        assert self._steps is not None
        return self._steps.prediction

    def virtual_s(self) -> float:
        """As `TrainingClosures.virtual_s`."""
        assert self._steps is not None
        return self._steps.virtual_s


class VirtualSteps:
    """Schedules steps on virtual workers, and does their arithmetic in this process.

    Attributes:
      num_steps, logs: as in `psrun.closures.training_closures.Steps`.
      cluster: the virtual cluster.
      prediction: as `TrainingClosures.prediction`.
    """

    def __init__(self, kind: StepKind, consistency: choices.ConsistencyChoice, num_workers: int) -> None:
        program = kind.program
        virtual = program.config.cluster
        assert isinstance(virtual, Virtual)
        num_examples = program.source.num_train_examples
        if num_examples is not None and num_workers > num_examples:
            message = f"is {num_workers}, more than the {num_examples} training examples; choose fewer workers"
            raise ConfigError([Problem("cluster.num_workers", message)])
        self._virtual = virtual
        self._kind = kind
        self._feed = kind.feed
        self._averages = consistency.averages
        self._updates_rows = consistency.updates_rows
        self._rows_done: set[int] = set()  # gradients whose rows were updated with an earlier gradient of their batch
        self._places: dict[int, int] = {}  # of the batches of gradients, until these are applied or discarded
        seed = program.config.seed
        self._seconds: StepSeconds | None = None
        self.prediction: Mapping[str, Any] = {}
        self._server_losses: ServerLosses | None = None
        if virtual.delay is not None:
            self.cluster = prediction.delayed(virtual, seed, kind.num_scheduled(), self._deal)
        else:
            self._seconds = virtual.step_seconds(seed)
            self._seconds.begin(kind.num_scheduled())
            self._server_losses = prediction.server_losses(virtual, program.config, seed, kind.num_scheduled())
            traffic = program.distribution.traffic
            self.prediction = prediction.predicted(program.config, traffic).facts
            self.cluster = prediction.make_cluster(
                virtual,
                consistency,
                self._seconds,
                prediction.costs_of(virtual, traffic),
                virtual.worker_losses(seed, kind.num_scheduled()),
                dealt=self._deal,
                dealt_again=self._deal_again,
            )
        late = LateUpdates(
            program,
            averages=consistency.averages,
            discards=consistency.averages or virtual.worker_mtbf_s is not None,
            updates_rows=consistency.updates_rows,
        )
        spec = tf.type_spec_from_value(kind.iterator)
        self._closure = Closure(program, kind.feed, [late], kind.step, spec)
        self._function = self._closure.trace(1, num_steps=None)
        self.num_steps = prediction.steps_of_a_closure(virtual, program.config)
        self._num_since = 0  # steps scheduled since `virtual_time` was called, which was then
        self._since_s = kind.began_s
        self.logs: Any = kind.logs
        kind.on_packed(Packed(self.num_steps))
        for text in prediction.remarks(virtual, program.config):
            kind.warn(text)

    @property
    def virtual_s(self) -> float:
        """Virtual seconds since the training began."""
        lost_s = 0.0 if self._server_losses is None else self._server_losses.lost_s
        return self._kind.began_s + self.cluster.now_s + lost_s

    def virtual_time(self) -> dict[str, float]:
        """As `VirtualClosures.virtual_time`."""
        if self._seconds is None:
            return {}
        now_s = self.virtual_s
        seconds = now_s - self._since_s
        steps_per_s = self._num_since / seconds if seconds else 0.0
        self._since_s = now_s
        self._num_since = 0
        return {
            "time_s": now_s,
            "seconds": seconds,
            "steps_per_s": steps_per_s,
            "examples_per_s": steps_per_s * self._kind.program.examples_per_step,
        }

    def schedule(self, most: int) -> int:
        """As in `Steps`."""
        num_steps = min(self.num_steps, most)
        self.cluster.schedule(num_steps, self._kind.steps_left())
        self._lose_servers(num_steps)
        self._num_since += num_steps
        if len(self.cluster.actions) > 2 * _STEPS_OF_A_CALL:
            self._run(all_of_them=False)
        return num_steps

    def join(self) -> None:
        """Waits for all scheduled steps."""
        self.cluster.join()
        self._lose_servers(0)
        self._run(all_of_them=True)
        for worker, counted in sorted(self.cluster.counts.staleness.items()):
            task = "chief-0" if worker == CHIEF else f"worker-{worker}"
            for staleness, count in counted.items():
                self._kind.meter.note(task, staleness, count)
        self.cluster.counts.staleness.clear()
        if self._seconds is not None:
            self._seconds.begin(self._kind.num_scheduled())

    def _lose_servers(self, num_steps: int) -> None:
        """Loses the servers that are lost while the last steps ran."""
        if self._server_losses is not None:
            self._server_losses.advance(self.cluster.now_s, num_steps)

    def losses(self) -> dict[str, Any]:
        """What was lost so far, for the facts of the closures; empty where nothing can be lost."""
        facts: dict[str, Any] = {}
        if self._virtual.worker_mtbf_s is not None:
            facts |= {"workers_lost": self.cluster.num_lost, "gradients_lost": self.cluster.counts.lost}
        if self._server_losses is not None:
            facts |= {"ps_lost": self._server_losses.num_lost, "ps_lost_s": round(self._server_losses.lost_s, 3)}
        return facts

    def _deal(self, first: int, count: int) -> None:
        """The batches of gradients."""
        if not self._averages:
            self._keep_place(first, self._feed.deal(count), count)
            return
        for number in range(first, first + count):
            batch = self._feed.deal(1)
            self._keep_place(number, batch, 1)
            if self._feed.is_partly_applied(batch):
                self._rows_done.add(number)

    def _keep_place(self, first: int, batches: Inputs, count: int) -> None:
        place = int(batches.get("place", 0))
        for offset in range(count):
            self._places[first + offset] = place + offset

    def _deal_again(self, dropped: Dropped) -> None:
        number = dropped.number
        has_updated_rows = number in self._rows_done or (self._updates_rows and dropped.was_taken)
        place = tf.constant(self._places[number], tf.int64)
        self._feed.deal_again([{"place": place}], partly=has_updated_rows)
        if not dropped.was_taken:
            self._forget(number)

    def _forget(self, number: int) -> None:
        del self._places[number]
        self._rows_done.discard(number)

    def _run(self, *, all_of_them: bool) -> None:
        """Does the arithmetic of the actions so far.

        What follows the last step stays, if more steps come: an action is done behind a step.
        """
        actions = self.cluster.actions
        while actions:
            end = _end_of_call(actions)
            if end == len(actions) and not all_of_them:
                return
            call, actions[:] = actions[:end], actions[end:]
            self._call(call)

    def _call(self, actions: Sequence[Action]) -> None:
        """Runs a part of the actions that begins with a step."""
        inputs = _Inputs(self._rows_done, updates_rows=self._updates_rows)
        for action in actions:
            inputs.add(action)
        tensors = inputs.tensors()
        if "places" in self._feed.inputs():
            places = [self._places[number] for number in inputs.numbers]
            tensors["places"] = tf.constant(places, tf.int64)
        tensors |= {"iterator": self._kind.iterator, "num_steps": tf.constant(len(inputs.numbers))}
        for number in inputs.done:
            self._forget(number)
        returned = self._function(*self._closure.flat(tensors))
        if returned is not None:
            self.logs = returned


def _end_of_call(actions: Sequence[Action]) -> int:
    """The end of the first steps, as many as one call does, with what is behind them."""
    num_steps = 0
    for place, action in enumerate(actions):
        if isinstance(action, Read):
            if num_steps == _STEPS_OF_A_CALL:
                return place
            num_steps += 1
    return len(actions)


class _Inputs:
    """The inputs of `LateUpdates`.

    Args:
      rows_done: gradients whose rows were updated with an earlier gradient of their batch.
      updates_rows: as in `LateUpdates`.

    Attributes:
      numbers: of the gradients that are computed.
      done: numbers of the gradients that are applied or discarded.
    """

    def __init__(self, rows_done: Set[int], *, updates_rows: bool) -> None:
        self._rows_done = rows_done
        self._updates_rows = updates_rows
        self.numbers: list[int] = []
        self.done: list[int] = []
        self._actions_until: list[int] = []
        self._actions: list[int] = []
        self._gradients_until: list[int] = []
        self._ages: list[int] = []
        self._gradients: list[int] = []
        self._weights: list[float] = []

    def add(self, action: Action) -> None:
        """Adds what is done next; the first one is a `Read`."""
        match action:
            case Read(number):
                self.numbers.append(number)
                self._actions_until.append(len(self._actions))
            case Applied(numbers, weights, ages):
                self.done += numbers
                self._add(_APPLY, numbers, weights, max(ages))
            case Arrived(number):
                kind = _DISCARD_ROWS if number in self._rows_done else _UPDATE_ROWS
                self._add(kind, [number], [1.0], 0)
            case Discarded(number):
                self.done.append(number)
                self._add(_DISCARD, [number], [1.0], 0)
            case Lost(number):
                self._add(_DISCARD, [number], [1.0], 0)
                if self._updates_rows:
                    self._add(_DISCARD_ROWS, [number], [1.0], 0)
            case Cancelled(number):
                self.done.append(number)

    def _add(self, kind: int, numbers: Sequence[int], weights: Sequence[float], age: int) -> None:
        self._actions.append(kind)
        self._gradients += numbers
        self._weights += weights
        self._gradients_until.append(len(self._gradients))
        self._ages.append(age)
        self._actions_until[-1] = len(self._actions)

    def tensors(self) -> dict[str, Any]:
        return {
            "numbers": tf.constant(self.numbers, tf.int64),
            "actions_until": tf.constant(self._actions_until, tf.int32),
            "actions": tf.constant(self._actions, tf.int32),
            "gradients_until": tf.constant(self._gradients_until, tf.int32),
            "ages": tf.constant(self._ages, tf.int32),
            "gradients": tf.constant(self._gradients, tf.int64),
            "weights": tf.constant(self._weights, tf.float32),
        }
