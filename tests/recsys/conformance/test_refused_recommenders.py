"""Mistakes in models of recommenders, metrics of lists and candidates are refused by the key that has to change.

What is said: tests/recsys/contract/test_messages_recsys.py.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from list_models import Clicks
from list_models import arguments as of_clicks
from messages import refused
from plain_config import plain_config
from shared_features import share, with_widths
from support import run_config

from psrun.cli import command_line
from psrun.config import parse
from psrun.errors import ConfigError, DataError
from psrun.program.build import make_model
from psrun.recsys.data.criteo import Criteo
from psrun.recsys.data.flights import Flights
from psrun.recsys.models.two_tower import two_tower
from psrun.recsys.models.wide_deep import wide_deep
from psrun.tables import commands
from psrun.tables.table import Table

pytestmark = pytest.mark.tensorflow

CRITEO = "\t".join(["1", *(str(number) for number in range(13)), *(f"{number:08x}" for number in range(26))])
# What is said, by the content of a file.
BAD_FILES = {
    "row 2: 3 fields": f"{CRITEO}\n1\t2\t3\n",
    "row 1: 41 fields": f"{CRITEO}\tmore\n",
    "row 1: 2 fields": "label\tcounts\n",
    "column label": CRITEO.replace("1", "2", 1) + "\n",
    "'seven' is not a number": CRITEO.replace("\t7\t", "\tseven\t", 1) + "\n",
    "too large": CRITEO.replace("\t7\t", f"\t{'7' * 60}\t", 1) + "\n",
    "is empty": "",
}
TOWERS: dict[str, list[dict[str, Any]]] = {
    "query_features": [{"query_features": ["C27"]}, {"query_features": ["C1", "C1"]}, {"query_features": []}],
    "embedding_dim": [{"query_features": ["C1"], "embedding_dim": {"C1": 4}}],
    "hidden_units": [{"query_features": ["C1"], "hidden_units": []}],
}
ALONE = "matrix_factorization model.user=user model.item=item model.objective=softmax"
SHARED: dict[str, Any] = {
    "as_a_text": {"word": "clicked"},
    "with_a_number": {"word": ["clicked", 3]},
    "by_one_feature": {"word": ["clicked"]},
    "by_one_without_ids": {"word": ["clicked", "price"]},
    "twice_by_one": {"word": ["clicked", "clicked"]},
    "in_two_tables": {"a": ["clicked", "bought"], "b": ["bought", "seen"]},
    "under_the_name_of_a_feature": {"seen": ["clicked", "bought"]},
    "under_an_invalid_name": {"a b": ["clicked", "bought"]},
    "other_numbers_of_buckets": {"word": ["seen", "heard"]},
    "words_in_another_order": {"word": ["clicked", "turned"]},
    "more_words": {"word": ["clicked", "longer"]},
    "strings_and_integers": {"word": ["seen", "number"]},
    "files_with_other_words": {"word": ["filed", "other"]},
    "three_kinds": {"word": ["clicked", "bought"], "sound": ["same", "filed", "seen"]},
}
# The arguments, the changed features, and the key.
LISTS: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("wide_deep",), {"history": {"combiner": "max"}}, "model"),
    (("din",), {"words": {"combiner": None}}, "model"),
    (("din",), {"item": {"table": "goods"}, "history": {"table": "owned"}}, "model.history"),
    (("din",), {"item": {"table": "goods"}}, "data.features.history.table"),
    (("din", "model.history=x"), {}, "model.history"),
    (("din", "model.target=words"), {}, "model.target"),
]
CONFIGURED = {
    "model=dense evaluation=none model.metrics=[ndcg@10]": "model.metrics",
    "model=dense evaluation=distributed model.metrics=[gauc] evaluation.user=x": "evaluation",
    "model=dense evaluation=distributed model.metrics=[recall@3] evaluation.user=x evaluation.item=z"
    " evaluation.candidates=all": "evaluation",
    "model=dense trainer=fit evaluation=validation evaluation.by=[x,x]": "evaluation, evaluation.by",
    "model=dense evaluation.candidates=0": "evaluation.candidates",
    "model=dense model.metrics=[coverage@9] evaluation.user=x evaluation.item=y evaluation.candidates=9": (
        "evaluation.candidates"
    ),
    "model=dense predict.top_k=0 export.top_k=5": "predict.top_k",
}


@pytest.mark.parametrize("name", SHARED)
def test_features_that_share_a_table(name, tmp_path):
    refused("shared_tables", share, tmp_path, SHARED[name], error=ValueError)


@pytest.mark.parametrize("width", [0, "wide", {"default": "auto", "city": -1}])
def test_widths(width):
    refused("embedding_dim", with_widths, width, error=ValueError)


@pytest.mark.parametrize(("pieces", "changes", "key"), LISTS)
def test_models_of_lists(pieces, changes, key):
    refused(key, make_model, run_config(*of_clicks(*pieces)), Clicks(changes=changes))


@pytest.mark.parametrize("arguments", CONFIGURED)
def test_metrics_of_lists(arguments):
    refused(CONFIGURED[arguments], parse.load, plain_config(*shlex.split(arguments)))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("matrix_factorization model.user=user model.item=item", "data.label"),
        ("wide_deep", "data.label"),
        ("dense", "data.label"),
        (f"{ALONE} evaluation.user=user 'model.metrics=[recall@10]'", "evaluation.candidates"),
        (f"{ALONE} data.label=???", "data.label"),
    ],
)
def test_rows_without_a_label(arguments, key, tmp_path):
    (tmp_path / "shop.csv").write_text("user,item\n1,2\n")
    model, *more = shlex.split(arguments)
    data = ("data=table", f"data.path={tmp_path}/shop.csv", "data.label=null")
    refused(key, parse.load, plain_config(f"model={model}", *data, *more))


def test_a_model_of_ones_own_that_learns_from_labels(tmp_path):
    (tmp_path / "shop.csv").write_text("user,item\n" + "a,b\nc,d\n" * 9)
    source = Table(path=str(tmp_path / "shop.csv"), label=None, cache=str(tmp_path))
    own = run_config("data=features", "model=embedding")
    refused("data.label", make_model, own, source)
    refused("data.task", Table, path=str(tmp_path / "shop.csv"), label=None, task="binary", cache=str(tmp_path))


@pytest.mark.parametrize("text", BAD_FILES)
def test_files_of_criteo(text, tmp_path):
    (tmp_path / "rows.tsv").write_text(BAD_FILES[text])
    refused(text, Criteo, error=DataError, path=str(tmp_path / "rows.tsv"))


def test_options_of_criteo(tmp_path):
    (tmp_path / "good.tsv").write_text(f"{CRITEO}\n")
    good = str(tmp_path / "good.tsv")
    refused("no such file", Criteo, error=DataError, path=str(tmp_path / "nothing-*"))
    refused("data.eval_path", Criteo, path=good, eval_path=f"{tmp_path}/./good.tsv")
    refused("data.vocabulary", Criteo, path=good, vocabulary=str(tmp_path))
    refused("data.num_buckets", Criteo, path=good, num_buckets=0)


def test_synthetic_files(tmp_path):
    for option, value, text in (
        ("num-examples", "0", "num-files"),
        ("num-values", "0", "num-values"),
        ("empty", "1", "empty"),
        ("num-files", "0", "num-files"),
    ):
        refused(text, commands.main, ["synthesize", str(tmp_path / "synthetic"), f"--{option}", value])
    assert not (tmp_path / "synthetic").exists()
    (tmp_path / "file").touch()
    refused("is not empty", commands.main, ["synthesize", str(tmp_path)])


def test_models_of_criteo(tmp_path):
    (tmp_path / "rows.tsv").write_text(f"{CRITEO}\n" * 9)
    source = Criteo(path=str(tmp_path / "rows.tsv"))
    for text, options in TOWERS.items():
        for each in options:
            refused(text, two_tower, source, error=ValueError, **each)
    refused("embedding_dim", wide_deep, source, error=ValueError, embedding_dim={"default": 4, "counts": 2})


def test_options_of_flights():
    refused("data.eval_fraction", Flights, eval_fraction=0.0)
    refused("data.evaluate_on", Flights, evaluate_on="tset")


def test_a_run_that_is_not_there_is_the_only_problem_of_its_recommendations():
    with pytest.raises(ConfigError) as raised:
        command_line.composed(["mode=predict", "resume=/no/such", "predict.top_k=3"])
    assert [problem.key for problem in raised.value.problems] == ["resume"]


def test_recommendations_are_of_one_process(tmp_path):
    with pytest.raises(ConfigError) as raised:
        run_config("model=embedding", "cluster=inprocess", "mode=predict", f"resume={tmp_path}", "predict.top_k=3")
    assert "cluster" in [problem.key for problem in raised.value.problems]
