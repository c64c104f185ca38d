"""The features of a table as models see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from psrun.data.lists import weights_name
from psrun.data.source import Feature
from psrun.tables import feature_spec
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.prepared_rows import TYPES
from psrun.tables.statistics import Scale

_NUM_BUCKETS = 100_000  # of strings whose number of values nobody has counted


def make(
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
        feature = Feature((spec.width,), TYPES[spec.dtype], table=spec.table)
        if spec.vocabulary is not None:
            feature = replace(feature, vocabulary=_vocabulary(name, spec, folder))
        elif spec.dtype == "float32":
            feature = _with_scale(feature, spec, scales[name])
        else:
            usual = (num_buckets or _NUM_BUCKETS) if spec.dtype == "string" else None
            feature = replace(feature, num_buckets=spec.num_buckets or usual)
        if spec.max_values is not None:
            feature = replace(
                feature,
                shape=(None,),
                max_values=spec.max_values,
                keep=spec.keep,
                combiner=spec.combiner,
                weights=None if spec.weights is None else weights_name(name),
            )
        features[name] = feature
        if feature.weights is not None:
            features[feature.weights] = Feature((None,), tf.float32, max_values=spec.max_values, keep=spec.keep)
    return features


def _with_scale(feature: Feature, spec: FeatureSpec, scale: Scale) -> Feature:
    return replace(
        feature,
        logarithm=spec.logarithm,
        mean=scale.log_mean if spec.logarithm else scale.mean,
        deviation=scale.log_deviation if spec.logarithm else scale.deviation,
        boundaries=() if spec.bins is None else scale.boundaries(spec.bins),
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


def with_scales(features: Mapping[str, Feature], scales: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """The features with the scales that a run recorded: mean and deviation and, of features with bins, boundaries."""
    known = {
        name: replace(features[name], **{**scale, "boundaries": tuple(scale.get("boundaries", ()))})
        for name, scale in scales.items()
        if name in features
    }
    return {**features, **known}


def scales(features: Mapping[str, Feature]) -> dict[str, dict[str, Any]]:
    """The scales of features for run.json."""
    scales: dict[str, dict[str, Any]] = {}
    for name, feature in features.items():
        if feature.dtype == tf.float32 and not feature.is_list:
            boundaries = {"boundaries": list(feature.boundaries)} if feature.boundaries else {}
            scales[name] = {"mean": feature.mean, "deviation": feature.deviation, **boundaries}
    return scales


def unused(features: Mapping[str, Feature]) -> Iterator[str]:
    """Warnings about features that psrun's models ignore."""
    raw = [n for n, f in features.items() if f.dtype == tf.int64 and f.vocabulary is None and f.num_buckets is None]
    if raw:
        yield f"{', '.join(raw)}: integers without vocabulary and num_buckets; psrun's models ignore them"
