"""Checks of the keys of metrics of lists, of segments, of candidates and of recommendations."""

from __future__ import annotations

from collections.abc import Iterator

from psrun.config import rules
from psrun.config.choices import EvaluationChoice
from psrun.config.run_config import RunConfig
from psrun.errors import Problem
from psrun.recsys.part import PART

_CANDIDATES = "evaluation.candidates"
_TABLE = "psrun.tables.table.Table"
_SASREC = "psrun.recsys.models.sasrec.sasrec"
_OF_ITEMS = ("coverage", "popularity")  # metrics that need all items as candidates


def problems(config: RunConfig) -> Iterator[Problem]:
    """The problems that are visible before TensorFlow is imported."""
    yield from _of_lists(config)
    yield from _without_labels(config)
    yield from _of_recommendations(config)


def compared_by(config: RunConfig) -> tuple[str, str] | None:
    """The first metric of lists that has a name: the loss of a softmax over a batch says little about lists."""
    metrics = config.model_keys.metrics
    if not isinstance(metrics, list):
        return None  # by output, or none
    for name in rules.gathered_metrics(config.model_keys, PART.metrics.values()):
        is_of_items = name.partition("@")[0].lower() in _OF_ITEMS
        if name in metrics and not is_of_items:
            return f"val_{name}", "max"
    return None


def _of_lists(config: RunConfig) -> Iterator[Problem]:
    """Problems of metrics that need all examples of a user or a segment together."""
    evaluation = config.evaluation
    of_lists = rules.gathered_metrics(config.model_keys, PART.metrics.values())
    what = of_lists[0] if of_lists else "evaluation.by"
    refusal = evaluation.refusal_to_group(what)
    if refusal is not None and (of_lists or evaluation.by):
        yield Problem("evaluation", refusal)
    elif of_lists and evaluation.runs_on is None:
        yield Problem("model.metrics", f"has {of_lists[0]}, a metric of evaluations, but evaluation is none")
    elif of_lists and evaluation.user is None:
        message = f"is required for {of_lists[0]}, a metric of lists by user; set it to the feature with the users"
        yield Problem("evaluation.user", message)
    of_items = [name for name in of_lists if name.partition("@")[0].lower() in _OF_ITEMS]
    if evaluation.candidates is not None:
        yield from _of_candidates(evaluation, of_lists, of_items)
    elif of_items:
        yield Problem(_CANDIDATES, f"is null, but {of_items[0]} is about all items; set it to all")
    if len(set(evaluation.by)) < len(evaluation.by):
        yield Problem("evaluation.by", "lists a feature twice")


def _without_labels(config: RunConfig) -> Iterator[Problem]:
    """Problems of a table whose rows have no label. What a user's own model learns from is known when it is built."""
    data = config.data.target
    if data.name != _TABLE or data.options.get("label", "") is not None:
        return
    model = config.model
    learns_alone = model.name == _SASREC or model.options.get("objective") == "softmax"
    if model.name.startswith("psrun.") and not learns_alone:
        yield Problem("data.label", f"{rules.LEARNS_FROM_LABELS}: model.objective=softmax, or model=sasrec")
    of_lists = rules.gathered_metrics(config.model_keys, PART.metrics.values())
    if of_lists and config.evaluation.candidates is None:
        message = f"is null, but data.label is null, too: {of_lists[0]} needs other items in the lists; set it to all"
        yield Problem(_CANDIDATES, message)


def _of_candidates(evaluation: EvaluationChoice, of_lists: list[str], of_items: list[str]) -> Iterator[Problem]:
    if not of_lists:
        yield Problem(_CANDIDATES, "requires a metric of lists, such as model.metrics=[recall@10]")
    if evaluation.item is None:
        yield Problem("evaluation.item", f"is required with {_CANDIDATES}: the feature with the items")
    if evaluation.by:
        yield Problem("evaluation.by", f"is not supported with {_CANDIDATES}; set one of them to null")
    if evaluation.candidates == "all":
        return
    for name in of_items:
        yield Problem(_CANDIDATES, f"is {evaluation.candidates}, but {name} is about all items; set it to all")


def _of_recommendations(config: RunConfig) -> Iterator[Problem]:
    """Problems of the items that are recommended to each user."""
    keys = config.predict
    for key, top_k in (("predict.top_k", keys.top_k), ("export.top_k", config.export.top_k)):
        if top_k is None:
            continue
        for name in ("user", "item"):
            if getattr(config.evaluation, name) is None:
                yield Problem(f"evaluation.{name}", f"is required with {key}: the feature with the {name}s")
    if keys.top_k is None:
        return
    if keys.file_format == "tfrecord":
        yield Problem("predict.format", "is tfrecord, but predict.top_k writes csv or parquet")
    if config.mode == "predict" and config.cluster.has_parameter_servers:
        # Of the cluster: where the run is not found, its cluster is unknown, and only keys of the command line count.
        message = f"is {config.cluster.kind}, but predict.top_k is computed by one process, with the whole model"
        yield Problem("cluster", f"{message}; set cluster=none")
    if keys.keep:
        yield Problem("predict.keep", "is not supported with predict.top_k; set it to []")
