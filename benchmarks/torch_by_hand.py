"""The clicks model in PyTorch, in one process: kind `torch` of speed_by_hand.py; and what starts kind `torch_ps`.

Gradients of the table are sparse. Metrics are left out, as PyTorch has none of its own; that is to its favour.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

import clicks
import tensorflow as tf
import torch
import torch_rpc_by_hand
from limit_by_hand import ADAM_RATE, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE

ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": INITIAL_ACCUMULATOR, "eps": EPSILON}


class Model(torch.nn.Module):
    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, dim, sparse=True)
        torch.nn.init.uniform_(self.table.weight, -0.05, 0.05)
        self.dense = torch_rpc_by_hand.dense_layers(sizes(dim))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.dense(torch.cat([self.table(ids).flatten(1), numbers], 1))


def sizes(dim: int) -> tuple[int, ...]:
    """Of the dense layers, from the input to the output."""
    return (clicks.NUM_FEATURES * dim + clicks.NUM_NUMBERS, *clicks.HIDDEN_UNITS, 1)


def make_optimizers(name: str, model: Model) -> list[torch.optim.Optimizer]:
    table, dense = model.table.parameters(), model.dense.parameters()
    if name == "adam":
        return [torch.optim.SparseAdam(list(table), lr=ADAM_RATE), torch.optim.Adam(dense, lr=ADAM_RATE)]
    return [torch.optim.Adagrad(parameters, **ADAGRAD) for parameters in (table, dense)]


def arrays_of(source: clicks.Clicks) -> list[torch.Tensor]:
    """Ids, numbers and labels of all examples."""
    everything = source.train(batch_size=source.num_train_examples, seed=tf.constant(1, tf.int64))
    features, labels = next(iter(everything))
    return [torch.from_numpy(part.numpy().copy()) for part in (features["ids"], features["numbers"], labels)]


def batches(source: clicks.Clicks, batch_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Ids, numbers and labels, gathered by shuffled row numbers without end."""
    arrays = arrays_of(source)
    while True:
        for rows in torch.randperm(len(arrays[0])).split(batch_size):
            if len(rows) == batch_size:
                yield tuple(array[rows] for array in arrays)


def loop(options: argparse.Namespace, source: clicks.Clicks) -> Callable[[int], None]:
    """A function that does a number of steps."""
    torch.manual_seed(1)
    model, data = Model(options.rows, options.dim), batches(source, options.batch_size)
    optimizers = make_optimizers(options.optimizer, model)
    loss_function = torch.nn.BCEWithLogitsLoss()

    def train(count: int) -> None:
        for ids, numbers, labels in itertools.islice(data, count):
            model.zero_grad(set_to_none=True)
            loss_function(model(ids, numbers), labels).backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


def loop_on_parameter_servers(options: argparse.Namespace, source: clicks.Clicks, port: int) -> Callable[[int], None]:
    """A function that does a number of steps on the workers of torch_rpc_by_hand.py."""
    plan = torch_rpc_by_hand.Plan(
        options.rows, options.dim, sizes(options.dim), options.batch_size, options.num_ps, options.optimizer, ADAGRAD,
        ADAM_RATE,
    )  # fmt: skip
    return torch_rpc_by_hand.loop(plan, options.num_workers, arrays_of(source), port)
