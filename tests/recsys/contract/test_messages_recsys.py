"""What recommenders say about mistakes in models, metrics of lists and candidates, as the golden file has it.

More mistakes of these kinds, by their keys alone: tests/recsys/conformance/test_refused_recommenders.py.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from list_models import Clicks
from list_models import arguments as of_clicks
from plain_config import plain_config
from shared_features import share, with_widths
from support import run_config

from psrun.config import parse
from psrun.data.datasets import Regression
from psrun.program.build import make_model
from psrun.recsys.models.dlrm import dlrm
from psrun.recsys.models.two_tower import two_tower

pytestmark = pytest.mark.tensorflow

SHARED: dict[str, Any] = {
    "as_lists": [["clicked", "bought"]],
    "by_a_mistyped_one": {"word": ["clicked", "brought"]},
    "words_and_buckets": {"word": ["clicked", "seen"]},
    "other_widths": {"word": ["clicked", "wide"]},
}
LISTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "lists without combiner": (("dlrm",), {"history": {"combiner": None}}),
    "lists without ids": (("two_tower",), {"words": {"num_buckets": None}}),
    "a history of other items": (("din",), {"item": {"vocabulary": (1, 2)}}),
    "a history of one value": (("din", "model.history=item"), {}),
    "a target that is missing": (("din", "model.target=nothing"), {}),
}
CONFIGURED = [
    "model=dense model.metrics='[ndcg, ndcg@0, ndgc@10]'",
    "model=dense model.metrics=[ndcg@10]",
    "model=dense trainer=fit evaluation=validation model.metrics=[gauc] evaluation.user=x",
    "model=dense evaluation=distributed evaluation.by=[x]",
    "model=dense evaluation.candidates=all evaluation.by=[z]",
    "model=dense model.metrics=[coverage@10] evaluation.user=x",
    "model=dense predict.top_k=3 predict.path=p.tfrecord predict.keep=[a]",
]


@pytest.mark.parametrize("name", SHARED)
def test_features_that_share_a_table(name, tmp_path, says):
    says(share, tmp_path, SHARED[name])


def test_a_width_of_no_feature(says):
    says(with_widths, {"street": "auto"})


@pytest.mark.parametrize("name", LISTS)
def test_models_of_lists(name, says):
    pieces, changes = LISTS[name]
    says(make_model, run_config(*of_clicks(*pieces)), Clicks(changes=changes))


def test_models_of_other_data(says):
    says(dlrm, Regression())


def test_a_model_of_another_task(says):
    says(two_tower, Regression(), query_features=["x"])


@pytest.mark.parametrize("arguments", CONFIGURED)
def test_metrics_of_lists(arguments, says):
    says(parse.load, plain_config(*shlex.split(arguments)))
