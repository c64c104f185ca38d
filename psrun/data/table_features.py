"""The features of a table as models see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from psrun.data import feature_spec
from psrun.data.feature_spec import FeatureSpec
from psrun.data.lists import weights_name
from psrun.data.prepared_rows import TYPES
from psrun.data.source import Feature
from psrun.data.statistics import Scale

_NUM_BUCKETS = 100_000  # of strings whose number of values nobody has counted


def made(
    specs: Mapping[str, FeatureSpec],
    num_buckets: int | None,
    scales: Mapping[str, Scale],
    folder: Path | None = None,
) -> dict[str, Feature]:
    """The features by name; weights of the values of lists are separate features.

    Args:
      num_buckets: of strings without a vocabulary and their own number; None for 100,000.
      scales: of float features.
      folder: of the run, which has the files of long vocabularies; None without one.
    """
    features: dict[str, Feature] = {}
    for name, spec in specs.items():
        feature = _feature(name, spec, num_buckets or _NUM_BUCKETS, scales.get(name), folder)
        features |= dict(_with_weights(name, spec, feature))
    return features


def with_scales(features: Mapping[str, Feature], scales: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """The features with the scales that a run recorded: mean and deviation and, of features with bins, boundaries."""
    known = {
        name: replace(
            features[name],
            mean=scale["mean"],
            deviation=scale["deviation"],
            boundaries=tuple(scale.get("boundaries", ())),
        )
        for name, scale in scales.items()
        if name in features
    }
    return {**features, **known}


def unused(features: Mapping[str, Feature]) -> Iterator[str]:
    """Warnings about features that psrun's models ignore."""
    raw = [n for n, f in features.items() if f.dtype == tf.int64 and f.vocabulary is None and f.num_buckets is None]
    if raw:
        yield f"{', '.join(raw)}: integers without vocabulary and num_buckets; psrun's models ignore them"


def _with_weights(name: str, spec: FeatureSpec, feature: Feature) -> Iterator[tuple[str, Feature]]:
    if spec.max_values is None:
        yield name, replace(feature, table=spec.table)
        return
    weights = None if spec.weights is None else weights_name(name)
    yield (
        name,
        replace(
            feature,
            shape=(None,),
            max_values=spec.max_values,
            combiner=spec.combiner,
            weights=weights,
            table=spec.table,
        ),
    )
    if weights is not None:
        yield weights, Feature((None,), tf.float32, max_values=spec.max_values)


def _feature(name: str, spec: FeatureSpec, num_buckets: int, scale: Scale | None, folder: Path | None) -> Feature:
    """The features for models; floats have their scale."""
    shape, dtype = (spec.width,), TYPES[spec.dtype]
    if spec.vocabulary is not None:
        return Feature(shape, dtype, _vocabulary(name, spec, folder))
    if scale is None:
        buckets = num_buckets if spec.dtype == "string" else None
        return Feature(shape, dtype, num_buckets=spec.num_buckets or buckets)
    mean, deviation = (scale.log_mean, scale.log_deviation) if spec.logarithm else (scale.mean, scale.deviation)
    boundaries = () if spec.bins is None else scale.boundaries(spec.bins)
    return Feature(
        shape,
        dtype,
        logarithm=spec.logarithm,
        mean=mean,
        deviation=deviation,
        boundaries=boundaries,
        nullable=spec.nullable,
    )


def _vocabulary(name: str, spec: FeatureSpec, folder: Path | None) -> tuple[str, ...] | tuple[int, ...] | Path:
    """The values; a long vocabulary as the file in the folder of the run: a graph with all values would be sent to
    each worker."""
    if isinstance(spec.vocabulary, str):
        path = Path(spec.vocabulary).expanduser().absolute()
        return path if spec.dtype == "string" else tuple(feature_spec.listed(path, spec.dtype))
    if folder is not None and spec.dtype == "string":
        path = feature_spec.vocabulary_file(name, folder)
        if len(spec.vocabulary) > feature_spec.LISTED and path.exists():
            return path.absolute()
    return tuple(spec.vocabulary)
