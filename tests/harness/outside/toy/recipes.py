"""Models of another library: recipes, which the adapter turns into models of tf-keras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tf_keras

from psrun.data.source import DataSource, Feature
from psrun.program.adapters import Adapter, ModelFunction


@dataclass(frozen=True)
class Recipe:
    """The features of a model, and the width of its hidden layer."""

    features: Mapping[str, Feature]
    width: int


def line(source: DataSource, *, width: int = 2) -> Recipe:
    return Recipe(source.features, width)


class RecipeAdapter(Adapter):
    def adapt(self, function: ModelFunction) -> Any:
        returned = function.call()
        if not isinstance(returned, Recipe):
            return returned
        inputs = {}
        for name, feature in returned.features.items():
            inputs[name] = tf_keras.Input(feature.shape, dtype=feature.dtype, name=name)
        hidden = tf_keras.layers.Dense(returned.width, name="hidden")(*inputs.values())
        return tf_keras.Model(inputs, tf_keras.layers.Dense(1)(hidden))
