"""The clicks model trained in PyTorch, in the ways that benchmarks/speed.py holds psrun against.

    python benchmarks/torch_by_hand.py KIND [--rows N] [--optimizer adagrad|adam] [--report FILE]

Kinds: `torch` (one process) and `torch_ps` (parameter servers in PyTorch RPC, a process each). Gradients of tables are
sparse. Metrics are left out, as PyTorch has none; that is in its favour.

None of these processes imports TensorFlow: PyTorch's triton and TensorFlow each bring an LLVM, and a process that loads
both ends with "inconsistency in registered CommandLine options".
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import by_hand
import torch
from by_hand import ADAM_RATE, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE, Steps, parsed, report, timed
from torch.distributed import rpc


@dataclass(frozen=True)
class Plan:
    """The options of every process; `sizes` are those of the dense layers, from the input to the output."""

    rows: int
    dim: int
    sizes: tuple[int, ...]
    batch_size: int
    num_ps: int
    optimizer: str
    adagrad: dict[str, float]
    adam_rate: float


class Shard:
    """The state of one parameter server."""

    def __init__(self, plan: Plan, index: int) -> None:
        torch.manual_seed(index)
        self._table = torch.nn.Parameter(torch.empty(len(range(index, plan.rows, plan.num_ps)), plan.dim))
        torch.nn.init.uniform_(self._table, -0.05, 0.05)
        self._dense = list(dense_layers(plan.sizes).parameters())[index :: plan.num_ps]
        self._lock = threading.Lock()
        if plan.optimizer == "adam":
            self._optimizers: list[torch.optim.Optimizer] = [torch.optim.SparseAdam([self._table], lr=plan.adam_rate)]
            self._optimizers += [torch.optim.Adam(self._dense, lr=plan.adam_rate)] if self._dense else []
        else:
            self._optimizers = [torch.optim.Adagrad([self._table, *self._dense], **plan.adagrad)]

    def pull(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with torch.no_grad():
            return self._table[rows], [weight.detach() for weight in self._dense]

    def push(self, rows: torch.Tensor, of_rows: torch.Tensor, of_dense: Sequence[torch.Tensor]) -> None:
        with self._lock:
            self._table.grad = torch.sparse_coo_tensor(rows[None], of_rows, self._table.shape)
            for weight, gradient in zip(self._dense, of_dense):
                weight.grad = gradient
            for optimizer in self._optimizers:
                optimizer.step()


class Worker:
    """Trains on its own batches, shuffled without end."""

    def __init__(self, plan: Plan, index: int, data: Sequence[torch.Tensor]) -> None:
        torch.manual_seed(1000 + index)
        self._plan, self._data, self._network = plan, data, dense_layers(plan.sizes)
        self._loss = torch.nn.BCEWithLogitsLoss()
        self._order: Iterator[torch.Tensor] = iter(())

    def _batch(self) -> list[torch.Tensor]:
        indices = next(self._order, None)
        if indices is None:
            examples = torch.randperm(len(self._data[0])).split(self._plan.batch_size)
            self._order = iter([each for each in examples if len(each) == self._plan.batch_size])
            indices = next(self._order)
        return [array[indices] for array in self._data]

    def train(self, count: int) -> None:
        for _ in range(count):
            self._step(*self._batch())

    def _step(self, ids: torch.Tensor, numbers: torch.Tensor, labels: torch.Tensor) -> None:
        num_ps, flat, weights = self._plan.num_ps, ids.flatten(), list(self._network.parameters())
        places = [torch.nonzero(flat % num_ps == ps).flatten() for ps in range(num_ps)]
        shard_rows = [torch.div(flat[place], num_ps, rounding_mode="floor") for place in places]
        pulls = [rpc.rpc_async(f"ps-{ps}", pull, (rows,)) for ps, rows in enumerate(shard_rows)]
        rows = torch.empty(len(flat), self._plan.dim)
        for ps, future in enumerate(pulls):
            pulled, dense = future.wait()
            rows[places[ps]] = pulled
            for weight, value in zip(weights[ps::num_ps], dense):
                weight.data, weight.grad = value, None
        rows.requires_grad_()
        logits = self._network(torch.cat([rows.view(len(ids), -1), numbers], 1))
        self._loss(logits, labels).backward()
        assert rows.grad is not None
        pushes = [
            rpc.rpc_async(f"ps-{ps}", push, (shard_rows[ps], rows.grad[place], [w.grad for w in weights[ps::num_ps]]))
            for ps, place in enumerate(places)
        ]
        torch.futures.wait_all(pushes)


def dense_layers(sizes: Sequence[int]) -> torch.nn.Sequential:
    """Layers of these sizes, from the input to the output."""
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


_here: dict[str, Any] = {}  # the one shard or worker of this process
_children: list[subprocess.Popen] = []


def make(kind: Callable[..., Any], *arguments: Any) -> None:
    _here["task"] = kind(*arguments)


def pull(rows: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return _here["task"].pull(rows)


def push(*arguments: Any) -> None:
    _here["task"].push(*arguments)


def train(count: int) -> None:
    _here["task"].train(count)


def serve(name: str, rank: int, world_size: int, port: int) -> None:
    """One task, until the process that started it ends, however it does."""
    torch.set_num_threads(1)
    _join(name, rank, world_size, port)
    sys.stdin.read()
    os._exit(0)  # the group cannot be left in order: its first process is gone


def _join(name: str, rank: int, world_size: int, port: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=600)
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)


def rpc_loop(plan: Plan, num_workers: int, data: Sequence[torch.Tensor], port: int) -> Callable[[int], None]:
    """Starts all processes; returns a function that does a number of steps, as many on each worker."""
    servers = [f"ps-{index}" for index in range(plan.num_ps)]
    workers = [f"worker-{index}" for index in range(num_workers)]
    names = ["chief", *servers, *workers]
    for rank, name in enumerate(names[1:], start=1):
        command = f"import torch_by_hand as it; it.serve({name!r}, {rank}, {len(names)}, {port})"
        _children.append(
            subprocess.Popen([sys.executable, "-c", command], cwd=Path(__file__).parent, stdin=subprocess.PIPE)
        )
    _join("chief", 0, len(names), port)
    for index, name in enumerate(servers):
        rpc.rpc_sync(name, make, (Shard, plan, index))
    for index, name in enumerate(workers):
        rpc.rpc_sync(name, make, (Worker, plan, index, data))
    return lambda count: torch.futures.wait_all(
        [rpc.rpc_async(name, train, (count // len(workers),)) for name in workers]
    )


KINDS = ("torch", "torch_ps")
ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": INITIAL_ACCUMULATOR, "eps": EPSILON}


class Model(torch.nn.Module):
    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, dim, sparse=True)
        torch.nn.init.uniform_(self.table.weight, -0.05, 0.05)
        self.dense = dense_layers(sizes(dim))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.dense(torch.cat([self.table(ids).flatten(1), numbers], 1))


def sizes(dim: int) -> tuple[int, ...]:
    """Of the dense layers, from the input to the output."""
    return (by_hand.NUM_FEATURES * dim + by_hand.NUM_NUMBERS, *by_hand.HIDDEN_UNITS, 1)


def make_optimizers(name: str, model: Model) -> list[torch.optim.Optimizer]:
    table, dense = model.table.parameters(), model.dense.parameters()
    if name == "adam":
        return [torch.optim.SparseAdam(list(table), lr=ADAM_RATE), torch.optim.Adam(dense, lr=ADAM_RATE)]
    return [torch.optim.Adagrad(parameters, **ADAGRAD) for parameters in (table, dense)]


def arrays(options: argparse.Namespace) -> list[torch.Tensor]:
    """Ids, numbers and labels of all examples."""
    (features, labels), _ = by_hand.generated(rows=options.rows, skew=options.skew)
    return [torch.from_numpy(part) for part in (features["ids"], features["numbers"], labels)]


def batches(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, ...]]:
    """Ids, numbers and labels, gathered by shuffled row numbers without end."""
    everything = arrays(options)
    while True:
        for rows in torch.randperm(len(everything[0])).split(options.batch_size):
            if len(rows) == options.batch_size:
                yield tuple(array[rows] for array in everything)


def loop(options: argparse.Namespace) -> Steps:
    """In one process."""
    torch.manual_seed(1)
    model, data = Model(options.rows, options.dim), batches(options)
    optimizers = make_optimizers(options.optimizer, model)
    loss_function = torch.nn.BCEWithLogitsLoss()

    def train(count: int) -> None:
        for ids, numbers, labels in itertools.islice(data, count):
            model.zero_grad(set_to_none=True)
            loss_function(model(ids, numbers), labels).backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


def loop_on_parameter_servers(options: argparse.Namespace) -> Steps:
    """On workers that call parameter servers by PyTorch RPC."""
    plan = Plan(
        options.rows, options.dim, sizes(options.dim), options.batch_size, options.num_ps, options.optimizer, ADAGRAD,
        ADAM_RATE,
    )  # fmt: skip
    return rpc_loop(plan, options.num_workers, arrays(options), free_port())


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def main() -> None:
    options = parsed(__doc__, KINDS)
    train = loop_on_parameter_servers(options) if options.kind == "torch_ps" else loop(options)
    report(timed(train, options), options)
    os._exit(0)  # the group of PyTorch RPC cannot be left in order


if __name__ == "__main__":
    # PyTorch RPC pickles classes by their module: `__main__` is another module in the processes of the tasks.
    import torch_by_hand

    torch_by_hand.main()
