"""DLRM in PyTorch: `python benchmarks/torch_dlrm_by_hand.py KIND`, see benchmarks/dlrm_by_hand.py.

Kinds, by what looks up the rows and updates them: `torch` (an EmbeddingBag per table, sparse gradients, Adagrad of
PyTorch), `torchrec` (FusedEmbeddingBagCollection, which needs no process group) and `fbgemm` (the kernel below
TorchRec, with indices that lie in its order already).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from by_hand import DLRM_BOTTOM_UNITS, DLRM_TOP_UNITS, EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE, NUM_NUMBERS
from dlrm_by_hand import BELOW, DIM, NUM_TABLES, PAIRS, Examples, Train, Weights, main
from torch_by_hand import ADAGRAD, dense_layers


class Tables(Protocol):
    """Looks rows up, and updates them while or after the gradients are computed."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, NUM_TABLES, DIM) for ids (batch, NUM_TABLES)."""

    def update(self) -> None: ...


class EmbeddingBags:
    def __init__(self, tables: np.ndarray) -> None:
        bag = torch.nn.EmbeddingBag.from_pretrained
        self._bags = [bag(torch.from_numpy(table), freeze=False, mode="sum", sparse=True) for table in tables]
        self._optimizer = torch.optim.Adagrad([table.weight for table in self._bags], **ADAGRAD)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([bag(ids[:, [column]]) for column, bag in enumerate(self._bags)], 1)

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class TorchRec:
    def __init__(self, tables: np.ndarray) -> None:
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        self._names = [f"c{column}" for column in range(NUM_TABLES)]
        configs = [
            EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=len(table), feature_names=[name])
            for name, table in zip(self._names, tables)
        ]
        self._collection = FusedEmbeddingBagCollection(
            configs, torch.optim.Adagrad, {"lr": LEARNING_RATE, "eps": EPSILON}, device=torch.device("cpu")
        )
        for lookup in self._collection._emb_modules:
            _begin(lookup._emb_module, tables)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        features = KeyedJaggedTensor(self._names, ids.T.flatten(), lengths=lengths)
        return self._collection(features).values().view(-1, NUM_TABLES, DIM)

    def update(self) -> None:
        """The backward pass did it."""


class Fbgemm:
    def __init__(self, tables: np.ndarray) -> None:
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            OptimType,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self._lookup = SplitTableBatchedEmbeddingBagsCodegen(
            [(len(table), DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for table in tables],
            optimizer=OptimType.EXACT_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
        )
        _begin(self._lookup, tables)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(ids.numel() + 1)
        return self._lookup(ids.T.flatten(), offsets).view(-1, NUM_TABLES, DIM)

    def update(self) -> None:
        """The backward pass did it."""


def _begin(lookup: Any, tables: np.ndarray) -> None:
    """Sets the weights and accumulators of a look-up by fbgemm."""
    with torch.no_grad():
        for weight, table in zip(lookup.split_embedding_weights(), tables):
            weight.copy_(torch.from_numpy(table))
        for states in lookup.split_optimizer_states():
            for state in states:
                state.fill_(INITIAL_ACCUMULATOR)


class Dense(torch.nn.Module):
    """The layers of `psrun.recsys.models.dlrm`, with its defaults."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._bottom = dense_layers((NUM_NUMBERS, *DLRM_BOTTOM_UNITS, DIM))
        self._top = dense_layers((DIM + PAIRS, *DLRM_TOP_UNITS, 1))
        self._below = torch.from_numpy(BELOW)
        with torch.no_grad():
            for parameter, weight in zip(self.parameters(), weights.dense):
                # PyTorch has kernels as (outputs, inputs).
                parameter.copy_(torch.from_numpy(weight.T))

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        bottom = torch.relu(self._bottom(numbers))
        vectors = torch.cat([bottom[:, None], rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self._top(torch.cat([bottom, products.index_select(1, self._below)], 1))


def train_with(kind: type[Any], weights: Weights, data: Examples) -> Train:
    tables: Tables = kind(weights.tables())
    dense = Dense(weights)
    optimizer = torch.optim.Adagrad(dense.parameters(), **ADAGRAD)
    loss_function = torch.nn.BCEWithLogitsLoss()
    everything = [torch.from_numpy(part) for part in (weights.ids_of_tables(data), data.numbers, data.labels)]

    def train(order: np.ndarray) -> float:
        total = torch.zeros(())
        for which in torch.from_numpy(order):
            ids, numbers, labels = (part[which] for part in everything)
            loss = loss_function(dense(tables.rows(ids), numbers), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            tables.update()
            total += loss.detach()
        return float(total) / len(order)

    return train


KINDS = {
    "torch": lambda weights, data: train_with(EmbeddingBags, weights, data),
    "torchrec": lambda weights, data: train_with(TorchRec, weights, data),
    "fbgemm": lambda weights, data: train_with(Fbgemm, weights, data),
}

if __name__ == "__main__":
    main(KINDS, __doc__)
