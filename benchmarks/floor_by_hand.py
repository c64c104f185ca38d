"""DLRM in C and BLAS: `python benchmarks/floor_by_hand.py floor`, see benchmarks/dlrm_by_hand.py.

The floor, which no framework is far below: the loops of floor.c, compiled for this machine, and NumPy's products of
matrices. Each core trains on its part of the batch, then updates its part of the tables.
"""

from __future__ import annotations

import ctypes
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the threads are those of the parts

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from by_hand import EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE
from dlrm_by_hand import DIM, NUM_TABLES, NUM_VECTORS, PAIRS, Examples, Train, Weights, main

_SOURCE = Path(__file__).parent / "floor.c"
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
if platform.machine() == "x86_64":
    _FLAGS.append("-mprefer-vector-width=512")


def compiled() -> Callable[..., None]:
    """A function that calls one of floor.c: its name, then arrays, integers and floats.

    Raises:
      RuntimeError: there is no C compiler `cc`.
    """
    if shutil.which("cc") is None:
        raise RuntimeError("the floor needs a C compiler, and there is no cc")
    with tempfile.TemporaryDirectory(prefix="psrun-floor-") as folder:
        library = Path(folder, "floor.so")
        subprocess.run(["cc", *_FLAGS, "-o", library, _SOURCE, "-lm"], check=True)
        functions = ctypes.CDLL(str(library))

    def call(name: str, *arguments: Any) -> None:
        functions[name](*[_passed(argument) for argument in arguments])

    return call


def _passed(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_long(argument) if isinstance(argument, int) else ctypes.c_float(argument)


class _Part:
    """The arrays of a part of the batch, and its gradients."""

    def __init__(self, call: Callable[..., None], weights: Weights, size: int) -> None:
        self._call, self._weights, self._size = call, weights, size
        self._vectors: np.ndarray = np.empty((size, NUM_VECTORS, DIM), np.float32)
        self._features: np.ndarray = np.empty((size, DIM + PAIRS), np.float32)
        self.of_dense = [np.empty_like(each) for each in weights.dense]
        layers = [*weights.bottom, *weights.top]
        self._outputs: list[np.ndarray] = [np.empty((size, len(bias)), np.float32) for _, bias in layers]
        self._by_inputs: list[np.ndarray] = [np.empty((size, len(kernel)), np.float32) for kernel, _ in layers]
        self._inputs: list[np.ndarray] = [np.empty(0) for _ in layers]

    def train(self, batch: Examples, by_vectors: np.ndarray, of_all: int) -> float:
        """Computes `of_dense` and the gradients by the rows; returns the sum of the losses.

        Args:
          by_vectors: for the gradients, (size, NUM_VECTORS, DIM).
          of_all: the number of examples of all parts.
        """
        bottom, top = self._weights.bottom, self._weights.top
        self._call("take", batch.ids, self._weights.table, self._vectors, self._size)
        hidden = batch.numbers
        for index in range(len(bottom)):
            hidden = self._forward(index, hidden)
            self._call("activate", hidden, bottom[index][1], *hidden.shape)
        self._call("interact", self._vectors, hidden, self._features, self._size)
        hidden = self._features
        for index in range(len(top)):
            hidden = self._forward(len(bottom) + index, hidden)
            if index + 1 < len(top):
                self._call("activate", hidden, top[index][1], *hidden.shape)
        logits = hidden + top[-1][1]
        odds = np.exp(-np.abs(logits))
        loss: Any = np.sum(np.log1p(odds) + np.maximum(logits, 0) - batch.labels * logits, dtype=np.float64)
        gradient = (np.where(logits > 0, 1, odds) / (1 + odds) - batch.labels) / np.float32(of_all)
        for index in reversed(range(len(top))):
            gradient = self._backward(len(bottom) + index, gradient, relu=index + 1 < len(top))
        self._call("interact_back", self._vectors, gradient, by_vectors, self._size)
        gradient = np.ascontiguousarray(by_vectors[:, 0])
        for index in reversed(range(len(bottom))):
            gradient = self._backward(index, gradient, relu=True)
        return float(loss)

    def _forward(self, layer: int, values: np.ndarray) -> np.ndarray:
        """The product of the values and the kernel."""
        self._inputs[layer] = values
        return np.matmul(values, self._weights.dense[2 * layer], out=self._outputs[layer])

    def _backward(self, layer: int, gradient: np.ndarray, *, relu: bool) -> np.ndarray:
        """The gradient by the input of a layer, from the gradient by its output."""
        if relu:
            self._call("deactivate", self._outputs[layer], gradient, gradient.size)
        np.matmul(self._inputs[layer].T, gradient, out=self.of_dense[2 * layer])
        gradient.sum(0, out=self.of_dense[2 * layer + 1])
        if layer == 0:
            return gradient
        return np.matmul(gradient, self._weights.dense[2 * layer].T, out=self._by_inputs[layer])


class _Floor:
    """The step on batches of one size."""

    def __init__(self, weights: Weights, data: Examples, batch: int) -> None:
        self._call = compiled()
        self._weights, self._batch = weights, batch
        self._data = Examples(data.ids.astype(np.int32), data.numbers, data.labels)
        cores = len(os.sched_getaffinity(0))
        self._bounds = [batch * core // cores for core in range(cores + 1)]
        self._parts = [_Part(self._call, weights, end - begin) for begin, end in zip(self._bounds, self._bounds[1:])]
        self._tables = [NUM_TABLES * core // cores for core in range(cores + 1)]
        self._threads = ThreadPoolExecutor(cores)
        self._slots = np.full_like(weights.table, INITIAL_ACCUMULATOR)
        self._dense_slots = [np.full_like(each, INITIAL_ACCUMULATOR) for each in weights.dense]
        self._places: np.ndarray = np.full(len(weights.table), -1, np.int32)
        self._scratch: list[tuple[np.ndarray, np.ndarray]] = [
            (np.empty(batch, np.int32), np.empty((batch, DIM), np.float32)) for _ in range(cores)
        ]
        self._ids: np.ndarray = np.empty((batch, NUM_TABLES), np.int32)
        self._by_vectors: np.ndarray = np.empty((batch, NUM_VECTORS, DIM), np.float32)

    def step(self, which: np.ndarray) -> float:
        """Trains on the examples `which`; returns the loss before it."""
        cores = range(len(self._parts))
        losses = [*self._threads.map(lambda core: self._train(core, which), cores)]
        updates = self._threads.map(self._update, cores)
        for index, (weight, slot) in enumerate(zip(self._weights.dense, self._dense_slots)):
            gradient = sum(part.of_dense[index] for part in self._parts)
            self._call("move", weight, slot, gradient, weight.size, LEARNING_RATE, EPSILON)
        for _ in updates:
            pass
        return sum(losses) / self._batch

    def _train(self, core: int, which: np.ndarray) -> float:
        here = slice(self._bounds[core], self._bounds[core + 1])
        batch = self._data[which[here]]
        self._ids[here] = batch.ids
        return self._parts[core].train(batch, self._by_vectors[here], self._batch)

    def _update(self, core: int) -> None:
        first, end = self._tables[core], self._tables[core + 1]
        self._call(
            "move_rows", first, end, self._ids, self._by_vectors, self._weights.table, self._slots, self._places,
            *self._scratch[core], self._batch, LEARNING_RATE, EPSILON,
        )  # fmt: skip


def train_at_the_floor(weights: Weights, data: Examples) -> Train:
    floor: _Floor | None = None

    def train(order: np.ndarray) -> float:
        nonlocal floor
        if floor is None:
            floor = _Floor(weights, data, order.shape[1])
        return float(np.mean([floor.step(which) for which in order]))

    return train


KINDS = {"floor": train_at_the_floor}

if __name__ == "__main__":
    main(KINDS, __doc__)
