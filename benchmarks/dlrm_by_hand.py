"""What the programs that train DLRM without psrun share: data, initial weights, a float64 loop, and timed windows.

Each program, such as jax_by_hand.py, has some KINDS and calls `main`. `--check` compares the losses of the first steps
with a loop in NumPy, in float64, from the same weights and batches. The model is `psrun.recsys.models.dlrm` with its
default layers. Ids are rows of one stack of all tables already, and there are no metrics: both in favour of the peers.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import by_hand
import numpy as np
from by_hand import DLRM_BOTTOM_UNITS, DLRM_TOP_UNITS, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE, NUM_NUMBERS

NUM_TABLES, DIM = by_hand.NUM_FEATURES, 16
NUM_VECTORS = NUM_TABLES + 1
PAIRS = NUM_VECTORS * (NUM_VECTORS - 1) // 2
# The elements below the diagonal of a flat matrix (NUM_VECTORS * NUM_VECTORS,), row by row.
BELOW = np.flatnonzero(np.tri(NUM_VECTORS, k=-1))
CHECKED_STEPS, TOLERANCE = 20, 1e-4
_WARM_STEPS = 64
_SEED = 1


@dataclass(frozen=True)
class Examples:
    """Ids as rows of the stack of all tables (n, NUM_TABLES), numbers (n, NUM_NUMBERS) and labels (n, 1)."""

    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray

    def __getitem__(self, which: np.ndarray) -> Examples:
        return Examples(self.ids[which], self.numbers[which], self.labels[which])


@dataclass(frozen=True)
class Weights:
    """A stack of all tables (NUM_TABLES * rows, DIM), and kernel and bias of each dense layer."""

    table: np.ndarray
    bottom: list[tuple[np.ndarray, np.ndarray]]
    top: list[tuple[np.ndarray, np.ndarray]]

    @property
    def dense(self) -> list[np.ndarray]:
        """All kernels and biases, in the order of the layers."""
        return [*itertools.chain(*self.bottom, *self.top)]

    def tables(self) -> np.ndarray:
        """The tables one by one: (NUM_TABLES, rows, DIM)."""
        return self.table.reshape(NUM_TABLES, -1, DIM)

    def ids_of_tables(self, examples: Examples) -> np.ndarray:
        """The ids of the examples as rows of their own tables, (n, NUM_TABLES)."""
        return examples.ids % (len(self.table) // NUM_TABLES)


# Trains on the examples with these numbers, (steps, batch), and returns the mean of the losses of the steps.
Train = Callable[[np.ndarray], float]
Kind = Callable[[Weights, Examples], Train]


def examples(rows: int, count: int) -> Examples:
    """The examples of `data=tables` in benchmarks/conf."""
    features, labels = by_hand.of_tables(num_tables=NUM_TABLES, rows=rows, num_examples=count)
    columns: list[np.ndarray] = [features[f"c{table}"] + table * rows for table in range(NUM_TABLES)]
    return Examples(np.concatenate(columns, 1), features["numbers"], labels)


def initial_weights(rows: int) -> Weights:
    """Uniform rows, kernels by the rule of Glorot, and biases of zero."""
    rng = np.random.default_rng(_SEED)

    def layers(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
        made: list[tuple[np.ndarray, np.ndarray]] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            most = (6.0 / (fan_in + fan_out)) ** 0.5
            kernel = rng.uniform(-most, most, (fan_in, fan_out)).astype(np.float32)
            made.append((kernel, np.zeros(fan_out, np.float32)))
        return made

    table = rng.uniform(-0.05, 0.05, (NUM_TABLES * rows, DIM)).astype(np.float32)
    bottom = layers(NUM_NUMBERS, *DLRM_BOTTOM_UNITS, DIM)
    return Weights(table, bottom, layers(DIM + PAIRS, *DLRM_TOP_UNITS, 1))


def orders(num_examples: int, batch: int) -> Iterator[np.ndarray]:
    """The example numbers of each step, (batch,), without end; each pass is shuffled anew."""
    rng = np.random.default_rng(_SEED)
    while True:
        shuffled = rng.permutation(num_examples)
        for begin in range(0, num_examples - batch + 1, batch):
            yield shuffled[begin : begin + batch]


def in_float64(weights: Weights, data: Examples) -> Train:
    """The loop that every kind is checked against, in NumPy."""
    kept = Weights(
        weights.table.astype(np.float64),
        [(kernel.astype(np.float64), bias.astype(np.float64)) for kernel, bias in weights.bottom],
        [(kernel.astype(np.float64), bias.astype(np.float64)) for kernel, bias in weights.top],
    )
    slots = [np.full_like(each, INITIAL_ACCUMULATOR) for each in (kept.table, *kept.dense)]

    def train(order: np.ndarray) -> float:
        losses = []
        for which in order:
            batch = data[which]
            loss, of_rows, of_dense = _gradients(kept, batch)
            losses.append(loss)
            rows, position = np.unique(batch.ids, return_inverse=True)
            summed = np.zeros((len(rows), DIM))
            np.add.at(summed, position.reshape(-1), of_rows.reshape(-1, DIM))
            slots[0][rows] += summed**2
            kept.table[rows] -= LEARNING_RATE * summed / np.sqrt(slots[0][rows] + EPSILON)
            for weight, slot, gradient in zip(kept.dense, slots[1:], of_dense):
                slot += gradient**2
                weight -= LEARNING_RATE * gradient / np.sqrt(slot + EPSILON)
        return float(np.mean(losses))

    return train


def _gradients(weights: Weights, batch: Examples) -> tuple[float, np.ndarray, list[np.ndarray]]:
    """The loss, and its gradients by the looked-up rows (batch, NUM_TABLES, DIM) and by the dense weights."""
    bottom: list[np.ndarray] = [batch.numbers.astype(np.float64)]
    for kernel, bias in weights.bottom:
        bottom.append(np.maximum(bottom[-1] @ kernel + bias, 0.0))
    vectors = np.concatenate([bottom[-1][:, None], weights.table[batch.ids]], 1)
    products = (vectors @ vectors.transpose(0, 2, 1)).reshape(len(vectors), -1)
    top = [np.concatenate([bottom[-1], products[:, BELOW]], 1)]
    for kernel, bias in weights.top[:-1]:
        top.append(np.maximum(top[-1] @ kernel + bias, 0.0))
    logit = top[-1] @ weights.top[-1][0] + weights.top[-1][1]
    loss = float(np.mean(np.logaddexp(0.0, logit) - batch.labels * logit))

    by_logit = (1.0 / (1.0 + np.exp(-logit)) - batch.labels) / len(logit)
    of_top, by_input = _backward(weights.top, top, by_logit)
    by_products: np.ndarray = np.zeros((len(vectors), NUM_VECTORS * NUM_VECTORS))
    by_products[:, BELOW] = by_input[:, DIM:]
    by_products = by_products.reshape(-1, NUM_VECTORS, NUM_VECTORS)
    by_vectors = (by_products + by_products.transpose(0, 2, 1)) @ vectors
    by_bottom = (by_input[:, :DIM] + by_vectors[:, 0]) * (bottom[-1] > 0)
    of_bottom, _ = _backward(weights.bottom, bottom, by_bottom)
    return loss, by_vectors[:, 1:], [*of_bottom, *of_top]


def _backward(
    layers: list[tuple[np.ndarray, np.ndarray]], inputs: list[np.ndarray], gradient: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """The gradients by kernels and biases, and by the input, from the gradient by the last layer's linear output."""
    by_weights: list[np.ndarray] = []
    for index in reversed(range(len(layers))):
        by_weights = [inputs[index].T @ gradient, gradient.sum(0), *by_weights]
        gradient = gradient @ layers[index][0].T
        if index:
            gradient = gradient * (inputs[index] > 0)
    return by_weights, gradient


def main(kinds: Mapping[str, Kind], description: str | None) -> None:
    """The command of a program with these kinds."""
    options = _parsed(kinds, description)
    data = examples(options.rows, options.num_examples)
    weights = initial_weights(options.rows)
    steps = orders(options.num_examples, options.batch_size)
    # A kind may train the arrays in place.
    train = kinds[options.kind](copy.deepcopy(weights), data)
    if options.check:
        off = _greatest_difference(train, in_float64(weights, data), steps)
        sys.stdout.write(f"{options.kind}: losses of {CHECKED_STEPS} steps differ from float64 by {off:.1e} at most\n")
        # A loss that is not a number is not within the tolerance.
        sys.exit(0 if off <= TOLERANCE else 1)
    windows = _timed(train, steps, options.steps, options.windows)
    rate = statistics.median(windows["steps_per_s"])
    cpu_ms = statistics.median(windows["cpu_ms"])
    sys.stdout.write(f"{options.kind}: {rate:.1f} steps/s, {cpu_ms:.2f} ms of processor time a step\n")
    if options.report:
        options.report.write_text(json.dumps(windows), encoding="utf-8")


def _greatest_difference(one: Train, other: Train, steps: Iterator[np.ndarray]) -> float:
    """Between the losses of the first steps."""
    differences = []
    for order in itertools.islice(steps, CHECKED_STEPS):
        differences.append(abs(one(order[None]) - other(order[None])))
    return float(np.max(differences))


def _parsed(kinds: Mapping[str, Kind], description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*kinds])
    parser.add_argument("--rows", type=int, default=20_000, help="of each table")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--num-examples", type=int, default=by_hand.NUM_EXAMPLES)
    parser.add_argument("--steps", type=int, default=1000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--report", type=Path, help="file for steps per second and processor time, by window")
    parser.add_argument("--check", action="store_true", help="only compare the first losses with float64")
    return parser.parse_args()


def _timed(train: Train, steps: Iterator[np.ndarray], count: int, windows: int) -> dict[str, list[float]]:
    """Steps per second and processor time of a step in ms, of each window, after steps to warm up."""
    train(np.stack([*itertools.islice(steps, _WARM_STEPS)]))
    rates, cpu_ms = [], []
    for _ in range(windows):
        order = np.stack([*itertools.islice(steps, count)])
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        train(order)
        rates.append(count / (time.monotonic() - began_s))
        cpu_ms.append((time.process_time() - began_cpu_s) / count * 1e3)
    return {"steps_per_s": rates, "cpu_ms": cpu_ms}
