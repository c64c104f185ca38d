"""The clicks model trained in PyTorch, in the ways that benchmarks/speed.py holds psrun against.

    python benchmarks/torch_by_hand.py KIND [--rows N] [--optimizer adagrad|adam] [--report FILE]

Kinds: `torch` (one process), `torch_ps` (parameter servers in PyTorch RPC, a process each) and `torch_dlrm` (DLRM in
one process, an EmbeddingBag of `--rows` for each category; see benchmarks/dlrm.py). Gradients of tables are sparse.
Metrics are left out, as PyTorch has none; that is in its favour.

None of these processes imports TensorFlow: PyTorch's triton and TensorFlow each bring an LLVM, and a process that loads
both ends with "inconsistency in registered CommandLine options".
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
from collections.abc import Iterator

import click_examples
import torch
import torch_rpc_by_hand
from by_hand import Steps, parsed, report, timed
from click_examples import ADAM_RATE, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE

KINDS = ("torch", "torch_ps", "torch_dlrm")
ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": INITIAL_ACCUMULATOR, "eps": EPSILON}


class Model(torch.nn.Module):
    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, dim, sparse=True)
        torch.nn.init.uniform_(self.table.weight, -0.05, 0.05)
        self.dense = torch_rpc_by_hand.dense_layers(sizes(dim))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.dense(torch.cat([self.table(ids).flatten(1), numbers], 1))


class Dlrm(torch.nn.Module):
    """See `psrun.recsys.models.dlrm`, with its default layers."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        num_vectors = click_examples.NUM_FEATURES + 1
        self.table = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for _ in range(num_vectors - 1)
        )
        for table in self.table:
            torch.nn.init.uniform_(table.weight, -0.05, 0.05)
        self.register_buffer("below", torch.tril_indices(num_vectors, num_vectors, -1), persistent=False)
        bottom = torch_rpc_by_hand.dense_layers((click_examples.NUM_NUMBERS, *click_examples.DLRM_BOTTOM_UNITS, dim))
        pairs = num_vectors * (num_vectors - 1) // 2
        top = torch_rpc_by_hand.dense_layers((dim + pairs, *click_examples.DLRM_TOP_UNITS, 1))
        self.dense = torch.nn.ModuleList([bottom, top])

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        bottom = torch.relu(self.dense[0](numbers))
        vectors = [bottom, *(table(ids[:, [column]]) for column, table in enumerate(self.table))]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.below[0], self.below[1]]
        return self.dense[1](torch.cat([bottom, products], 1))


def sizes(dim: int) -> tuple[int, ...]:
    """Of the dense layers, from the input to the output."""
    return (click_examples.NUM_FEATURES * dim + click_examples.NUM_NUMBERS, *click_examples.HIDDEN_UNITS, 1)


def make_optimizers(name: str, model: Model | Dlrm) -> list[torch.optim.Optimizer]:
    table, dense = model.table.parameters(), model.dense.parameters()
    if name == "adam":
        return [torch.optim.SparseAdam(list(table), lr=ADAM_RATE), torch.optim.Adam(dense, lr=ADAM_RATE)]
    return [torch.optim.Adagrad(parameters, **ADAGRAD) for parameters in (table, dense)]


def arrays(options: argparse.Namespace) -> list[torch.Tensor]:
    """Ids, numbers and labels of all examples."""
    (features, labels), _ = click_examples.generated(rows=options.rows, skew=options.skew)
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
    network = Dlrm if options.kind == "torch_dlrm" else Model
    model, data = network(options.rows, options.dim), batches(options)
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
    """On the workers of torch_rpc_by_hand.py."""
    plan = torch_rpc_by_hand.Plan(
        options.rows, options.dim, sizes(options.dim), options.batch_size, options.num_ps, options.optimizer, ADAGRAD,
        ADAM_RATE,
    )  # fmt: skip
    return torch_rpc_by_hand.loop(plan, options.num_workers, arrays(options), free_port())


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def main() -> None:
    options = parsed(__doc__, KINDS)
    train = loop_on_parameter_servers(options) if options.kind == "torch_ps" else loop(options)
    report(timed(train, options), options)
    os._exit(0)  # the group of torch_rpc_by_hand.py cannot be left in order


if __name__ == "__main__":
    main()
