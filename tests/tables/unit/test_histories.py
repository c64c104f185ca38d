"""Generated histories of items: the truth, the files, and the features that describe them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from psrun.errors import ConfigError, ExitCode
from psrun.tables import commands, histories, synthesis

FEW = ("--histories", "--num-examples", "300", "--num-eval-examples", "100", "--num-values", "50", "--num-groups", "5")


def recipe(**options) -> histories.Recipe:
    return histories.Recipe(**{"num_examples": 100, "num_eval_examples": 100, **options})


def test_only_items_of_the_group_of_the_target_matter():
    settings = recipe(num_values=60, num_groups=6, max_values=8)
    truth = histories.Truth(settings, np.random.default_rng(1))
    rows, probability = truth.draw(np.random.default_rng(2), 5000)
    assert rows.items.min() >= 0
    assert rows.items.max() < 60
    assert set(rows.lengths.tolist()) == set(range(9))
    assert (rows.lengths == 0).mean() == pytest.approx(0.1, abs=0.02)
    held = np.arange(8) < rows.lengths[:, np.newaxis]
    same = held & (rows.history % 6 == rows.items[:, np.newaxis] % 6)
    assert same.sum() / held.sum() == pytest.approx(0.33, abs=0.1)
    logit = np.log(probability / (1 - probability)) / 1.5
    liked = np.where(same, rows.seconds * truth._quality[rows.history], 0).sum(1)
    weights, residuals, *_ = np.linalg.lstsq(np.stack([liked, truth._bias[rows.items]], 1), logit, rcond=None)
    assert residuals == pytest.approx(0, abs=1e-6)
    assert weights[1] == pytest.approx(np.sqrt(0.2))
    assert 0.5 < logit.std() < 1.6


def test_the_command_writes_rows_a_vocabulary_and_their_description(tmp_path, capsys):
    folder = tmp_path / "synthetic"
    assert commands.main(["synthesize", str(folder), *FEW, "--num-files", "2"]) == ExitCode.DONE
    assert "metrics of the true model: AUC 0." in capsys.readouterr().out
    names = (folder / "items.txt").read_text().split()
    assert len(set(names)) == 50
    header, *lines = (folder / "eval.csv").read_text().splitlines()
    assert header == "clicked,item,history,seconds"
    assert len(lines) == 100
    for line in lines:
        clicked, item, history, seconds = line.split(",")
        assert clicked in "01"
        assert {item, *history.split("|")} <= {*names, ""}
        assert history.count("|") == seconds.count("|")
    described = yaml.safe_load((folder / "data" / "histories.yaml").read_text())
    assert described["features"]["history"]["max_values"] == 50
    assert set(json.loads((folder / "truth.json").read_text())["bayes"]) == {"auc", "loss"}
    again = tmp_path / "again"
    commands.main(["synthesize", str(again), *FEW, "--num-files", "2"])
    assert (again / "eval.csv").read_bytes() == (folder / "eval.csv").read_bytes()


@pytest.mark.tensorflow
def test_the_description_is_a_choice_of_data(tmp_path):
    from psrun.config import composition, parse
    from psrun.data.loading import load_source

    folder = tmp_path / "synthetic"
    commands.main(["synthesize", str(folder), *FEW, "--gzip"])
    pieces = ("data=histories", "model=dense", "data.global_batch_size=16", f"data.cache={tmp_path}/cache")
    raw = composition.values(composition.compose(["--config-dir", str(folder), *pieces]))
    source = load_source(parse.load(raw))
    assert source.features["history"].table == source.features["item"].table == "item"
    assert (source.num_train_examples, source.num_eval_examples) == (300, 100)
    assert source.facts["num_truncated_rows"] == {"history": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*FEW, "--num-groups", "0"), "num-groups is 0, must be from 1 to num-values=50"),
        ((*FEW, "--num-groups", "51"), "num-groups is 51, must be from 1 to num-values=50"),
        ((*FEW, "--max-values", "0"), "max-values is 0, must be 1 or more"),
        ((*FEW, "--empty", "1"), "empty is 1.0, must be at least 0 and below 1"),
        (("--max-values", "5"), "--max-values needs --histories"),
    ],
)
def test_options_of_histories_are_checked(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        commands.main(["synthesize", str(tmp_path / "synthetic"), *arguments])
    assert not (tmp_path / "synthetic").exists()


def test_the_true_model_without_histories_knows_only_the_target(tmp_path):
    some, none = (
        synthesis.write(tmp_path / str(empty), recipe(num_eval_examples=20_000, empty=empty)) for empty in (0.0, 0.99)
    )
    assert some["auc"] > none["auc"] + 0.05
