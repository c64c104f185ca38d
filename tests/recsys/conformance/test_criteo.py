"""Rows of files in Criteo's layout: listed, dealt out, parsed; synthesized with a known truth; their values counted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support import run_config

from psrun.data import loading
from psrun.errors import ConfigError, ExitCode
from psrun.models.model import prepared
from psrun.recsys.data.criteo import Criteo
from psrun.tables import commands, synthesis

pytestmark = pytest.mark.tensorflow

READ = ("data=criteo", "data._target_=psrun.recsys.data.criteo.Criteo")


def synthesize(folder: Path, num_examples: int = 500, **options) -> Path:
    recipe = synthesis.Recipe(num_examples, 200, **{"num_values": 20, **options})
    synthesis.write(folder, recipe, num_files=3)
    return folder


def test_a_vocabulary_is_counted_and_used(tmp_path, capsys):
    folder = synthesize(tmp_path / "synthetic")
    words = tmp_path / "words"
    arguments = ["vocabulary", str(folder / "train-*"), str(words), "--min-count", "2", "--num-buckets", "16"]
    assert commands.main(arguments) == ExitCode.DONE
    assert f"data.vocabulary={words}" in capsys.readouterr().out.replace("\n", "")
    read = [row for file in sorted(folder.glob("train-*")) for row in csv.reader(file.open(), delimiter="\t")]
    categories = json.loads((words / "vocabulary.json").read_text())["categories"]
    for index in range(26):
        values = [row[14 + index] for row in read]
        wanted = {value for value in values if values.count(value) >= 2 and value}
        lines = (words / f"C{index + 1}.txt").read_text().splitlines()
        assert (set(lines), len(lines)) == (wanted, len(wanted))
        assert categories[f"C{index + 1}"]["values"] == len(wanted)
        assert categories[f"C{index + 1}"]["left_out"] == len({value for value in values if value} - wanted)
    assert any(categories[name]["collisions"] for name in categories)
    with pytest.raises(ConfigError, match="is not empty"):
        commands.main(arguments)

    source = Criteo(path=f"{folder}/train-*", eval_path=f"{folder}/eval.tsv", vocabulary=str(words))
    preprocessing, num_ids = prepared(source)
    lines = (words / "C3.txt").read_text().splitlines()
    assert num_ids["C3"] == len(lines) + 1
    ((features, _),) = source.evaluation(batch_size=200).as_numpy_iterator()
    ids = preprocessing(features)["C3"].numpy()[:, 0]
    known = {value.encode(): 1 + place for place, value in enumerate(lines)}
    assert ids.tolist() == [known.get(value, 0) for value in features["C3"][:, 0]]


@pytest.mark.thorough
def test_a_vocabulary_belongs_to_the_run(train, tmp_path):
    """An export has it within; a run does not go on with another one."""
    folder = synthesize(tmp_path / "synthetic")
    for name, seed in (("words", "1"), ("others", "2")):
        arguments = ["vocabulary", str(folder / "train-*"), str(tmp_path / name), "--seed", seed]
        assert commands.main(arguments) == ExitCode.DONE
    pieces = (
        *READ, "~model.embedding_dim", "model._target_=embeddings.of_one_category", f"data.path={folder}/train-*",
        f"data.eval_path={folder}/eval.tsv", "data.global_batch_size=64", "optimizer.learning_rate=0.5",
    )  # fmt: skip
    result, run = train(*pieces, f"data.vocabulary={tmp_path}/words", "export.at_end=true")
    (tmp_path / "words").rename(tmp_path / "moved")
    serve = tf.saved_model.load(result["export"]).signatures["serving_default"]
    features, label = next(
        iter(Criteo(path=f"{folder}/train-*", eval_path=f"{folder}/eval.tsv").evaluation(batch_size=200))
    )
    predictions = serve(**features)["prediction"]
    loss = tf.keras.losses.BinaryCrossentropy()(label, predictions)
    assert float(loss) == pytest.approx(result["metrics"]["val_loss"], rel=1e-4)
    assert len(np.unique(predictions)) > 10
    message = f"data.vocabulary: differs from the vocabulary that the run in {run.path} was trained with"
    with pytest.raises(ConfigError, match=message):
        loading.load_source(
            run_config(*pieces, f"data.vocabulary={tmp_path}/others", f"resume={run.path}"), result["data"]
        )


@pytest.mark.thorough
def test_synthesized_data_has_the_recorded_truth(tmp_path):
    """The recorded AUC is that of the true probabilities, computed as by another library."""
    from sklearn import metrics

    rng = np.random.default_rng(1)
    scores = rng.integers(50, size=2000) / 50  # many ties
    labels = (rng.random(2000) < scores).astype(int)
    assert synthesis.auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores))
    clipped = np.clip(scores, 0.01, 0.99)
    assert synthesis.log_loss(labels, clipped) == pytest.approx(metrics.log_loss(labels, clipped))
    bayes = synthesis.write(tmp_path / "synthetic", synthesis.Recipe(10, 20_000, signal=2.0))
    assert 0.75 < bayes["auc"] < 0.95
    assert json.loads((tmp_path / "synthetic" / "truth.json").read_text())["bayes"] == bayes
    chance = synthesis.write(tmp_path / "noise", synthesis.Recipe(10, 20_000, signal=0.0))
    assert chance["auc"] == pytest.approx(0.5)


def test_the_same_seed_makes_the_same_files(tmp_path, capsys):
    few = ("--num-examples", "50", "--num-eval-examples", "20")
    for name in ("one", "other"):
        assert commands.main(["synthesize", str(tmp_path / name), *few, "--gzip"]) == ExitCode.DONE
    assert "AUC" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["eval.tsv.gz", *(f"train-0000{n}-of-00004.tsv.gz" for n in range(4)), "truth.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dlrm", "two_tower"])
def test_experiments_learn_from_it_on_a_cluster(train, tmp_path, name):
    folder = synthesize(tmp_path / "synthetic", 2000, signal=3.0)
    own = ("model.query_features=[counts,C1,C2]", "model.embedding_dim={default: 8, C1: 2}")
    own = own if name == "two_tower" else ()
    # With a learning rate of 0.2, asynchronous steps spoil one model in ten.
    result, _ = train(
        f"experiment={name}", f"data.path={folder}/train-*", f"data.eval_path={folder}/eval.tsv",
        "data.num_buckets=50", "data.global_batch_size=64", "trainer.epochs=2", "trainer.steps_per_epoch=80",
        "partitioner=fixed_shards", "partitioner.num_shards=2", "optimizer.learning_rate=0.1", *own,
    )  # fmt: skip
    assert result["data"]["num_train_files"] == 3
    assert result["evaluation"]["examples_seen"] == 200
    assert result["metrics"]["val_auc"] > 0.8  # by chance 0.5; it is 0.85 and more
