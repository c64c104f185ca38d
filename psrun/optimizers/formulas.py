"""What optimizers do to a table, for programs that go on with its rows and slots: formulas and their constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ADAGRAD = "accumulator += g**2; rows -= learning_rate * g / sqrt(accumulator + epsilon)"
_ADAM = (
    "m += (1 - beta_1) * (g - m); v += (1 - beta_2) * (g**2 - v); "
    "rows -= learning_rate * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)"
)
_FTRL = (
    "n = accumulator + g**2; p = -learning_rate_power; s = 2 * l2_shrinkage_regularization_strength; "
    "linear += g + s * rows - (n**p - accumulator**p) / learning_rate * rows; accumulator = n; "
    "l1 = l1_regularization_strength; l2 = l2_regularization_strength + beta / (2 * learning_rate); "
    "rows = (clip(linear, -l1, l1) - linear) / (n**p / learning_rate + 2 * l2)"
)
# By the class of an optimizer, Python with NumPy's functions. The names are those of slots and constants; `g` is the
# gradient, summed by row and clipped; `t` the number of steps with this one. Other variables than tables have the same
# formula, but with RowwiseAdagrad that of Adagrad.
FORMULAS: Mapping[str, str] = {
    "Adagrad": _ADAGRAD,
    "SparseAdagrad": _ADAGRAD,
    "RowwiseAdagrad": "accumulator += mean(g**2, 1); rows -= learning_rate * g / sqrt(accumulator[:, None] + epsilon)",
    "Adam": f"{_ADAM}  # all rows, also with g = 0",
    "LazyAdam": f"{_ADAM}  # the rows of the batch",
    "SGD": "m = momentum * m - learning_rate * g; rows += m  # all rows, also with g = 0",
    "SparseSGD": "rows -= learning_rate * g",
    "SparseFtrl": f"{_FTRL}  # the rows of the batch",
}
# Constants with which an optimizer does something else.
_CHANGING = (
    "adaptive_epsilon", "amsgrad", "delay_compensation", "nesterov", "staleness_aware", "use_ema", "weight_decay",
)  # fmt: skip


def formula(optimizer: str, module: str, constants: Mapping[str, Any]) -> str | None:
    """The formula of an optimizer by its class and the module of the class; None if it has another one, or is unknown.

    Keras' legacy optimizers have others.
    """
    if not module.startswith(("psrun.", "tf_keras.")) or ".legacy." in module:
        return None
    if any(constants.get(name) for name in _CHANGING):
        return None
    return FORMULAS.get(optimizer)
