"""DLRM in JAX, by hand: `python benchmarks/jax_by_hand.py jax`, see benchmarks/dlrm_by_hand.py.

One jitted step with donated buffers on one stacked table. The gradients of a row that a batch has several times are
summed without a sort and without a pass over the table.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from by_hand import EPSILON, INITIAL_ACCUMULATOR, LEARNING_RATE
from dlrm_by_hand import BELOW, Examples, Train, Weights, main


def _logits(rows: Any, bottom: Any, top: Any, numbers: Any) -> Any:
    hidden = numbers
    for kernel, bias in bottom:
        hidden = jax.nn.relu(hidden @ kernel + bias)
    vectors = jnp.concatenate([hidden[:, None], rows], 1)
    products = jnp.einsum("bid,bjd->bij", vectors, vectors).reshape(len(vectors), -1)
    hidden = jnp.concatenate([hidden, products[:, BELOW]], 1)
    for kernel, bias in top[:-1]:
        hidden = jax.nn.relu(hidden @ kernel + bias)
    return hidden @ top[-1][0] + top[-1][1]


def _loss(rows: Any, bottom: Any, top: Any, numbers: Any, labels: Any) -> Any:
    logits = _logits(rows, bottom, top, numbers)
    return jnp.mean(jnp.logaddexp(0.0, logits) - labels * logits)


def _step(state: Any, ids: Any, numbers: Any, labels: Any) -> tuple[Any, Any]:
    (table, of_table, place), dense, slots = state
    rows = table[ids]
    by = jax.value_and_grad(_loss, argnums=(0, 1, 2))
    loss, (by_rows, *by_dense) = by(rows, *dense, numbers, labels)
    slots = jax.tree.map(lambda slot, gradient: slot + gradient**2, slots, by_dense)
    dense = jax.tree.map(_moved, dense, by_dense, slots)
    # Each row that the batch has several times gets one of its places, where its gradients are summed.
    place = place.at[ids].set(jnp.arange(ids.size, dtype=jnp.int32).reshape(ids.shape))
    places = place[ids]
    summed = jnp.zeros((ids.size, rows.shape[-1])).at[places].add(by_rows)[places]
    grown = of_table[ids] + summed**2
    # Such a row is set to the same values each time.
    of_table = of_table.at[ids].set(grown)
    table = table.at[ids].set(_moved(rows, summed, grown))
    return ((table, of_table, place), dense, slots), loss


def _moved(weight: Any, gradient: Any, slot: Any) -> Any:
    return weight - LEARNING_RATE * gradient * jax.lax.rsqrt(slot + EPSILON)


def train_in_jax(weights: Weights, data: Examples) -> Train:
    table = jnp.asarray(weights.table)
    dense = jax.tree.map(jnp.asarray, [weights.bottom, weights.top])
    slots = jax.tree.map(lambda weight: jnp.full_like(weight, INITIAL_ACCUMULATOR), dense)
    state = ((table, jnp.full_like(table, INITIAL_ACCUMULATOR), jnp.zeros(len(table), jnp.int32)), dense, slots)
    data = Examples(data.ids.astype(np.int32), data.numbers, data.labels)
    step = jax.jit(_step, donate_argnums=0)

    def train(order: np.ndarray) -> float:
        nonlocal state
        losses = []
        for which in order:
            batch = data[which]
            state, loss = step(state, batch.ids, batch.numbers, batch.labels)
            losses.append(loss)
        return float(np.mean(losses))

    return train


KINDS = {"jax": train_in_jax}

if __name__ == "__main__":
    main(KINDS, __doc__)
