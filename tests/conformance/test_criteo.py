"""Rows of files in Criteo's layout: listed, dealt out, parsed; synthesized with a known truth; their values counted."""

from __future__ import annotations

import csv
import gzip
import json
import socket
from pathlib import Path

import numpy as np
import pytest
from support import REPOSITORY, run_config, truncated

from psrun.data import commands, synthesis
from psrun.errors import ConfigError, DataError, ExitCode

pytestmark = pytest.mark.tensorflow

READ = ("data=criteo", "data._target_=psrun.data.criteo.Criteo")
GOOD = "\t".join(["1", *(str(number) for number in range(13)), *(f"{number:08x}" for number in range(26))])


def synthesize(folder: Path, num_examples: int = 500, **options) -> Path:
    recipe = synthesis.Recipe(num_examples, 200, **{"num_values": 20, **options})
    synthesis.write(folder, recipe, num_files=3)
    return folder


def as_csv_reads_it(files: list[Path]) -> list[list[str]]:
    return [row for file in files for row in csv.reader(file.open(), delimiter="\t")]


def all_of(dataset) -> tuple[dict[str, np.ndarray], np.ndarray]:
    batches = list(dataset.as_numpy_iterator())
    features = {name: np.concatenate([batch[0][name] for batch in batches]) for name in batches[0][0]}
    return features, np.concatenate([batch[1] for batch in batches])


def criteo(path, **options):
    from psrun.data.criteo import Criteo

    return Criteo(path=str(path), **options)


@pytest.mark.parametrize("zipped", [False, True])
def test_rows_are_what_a_csv_reader_finds(tmp_path, zipped):
    folder = synthesize(tmp_path / "synthetic")
    read = as_csv_reads_it([folder / "eval.tsv"])
    if zipped:
        (folder / "eval.tsv.gz").write_bytes(gzip.compress((folder / "eval.tsv").read_bytes()))
    source = criteo(folder / "train-*", eval_path=str(folder / ("eval.tsv.gz" if zipped else "eval.tsv")))
    assert source.num_eval_examples == 200
    features, label = all_of(source.evaluation(batch_size=64))
    assert label[:, 0].tolist() == [float(row[0]) for row in read]
    assert features["counts"].tolist() == [[float(field or 0) for field in row[1:14]] for row in read]
    for index in range(26):
        assert features[f"C{index + 1}"][:, 0].tolist() == [row[14 + index].encode() for row in read]
    assert {field for row in read for field in row} >= {"", "0", "1"}


def test_a_pass_is_in_another_order_and_batches_are_full(tmp_path):
    import tensorflow as tf

    folder = synthesize(tmp_path / "synthetic")
    source = criteo(folder / "train-*")
    batches = source.train(batch_size=100, seed=tf.constant(7, tf.int64)).take(10)
    counts = [batch[0]["counts"] for batch in batches.as_numpy_iterator()]
    assert [len(each) for each in counts] == [100] * 10
    passes = np.concatenate(counts[:5]), np.concatenate(counts[5:])
    assert not np.array_equal(*passes)
    again = source.train(batch_size=100, seed=tf.constant(7, tf.int64)).take(1).as_numpy_iterator()
    np.testing.assert_array_equal(next(again)[0]["counts"], counts[0])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\t2\t3", "row 2: 3 fields instead of 40"),
        (GOOD + "\tmore", "row 2: 41 fields instead of 40"),
        (GOOD.replace("1", "2", 1), "row 2: column label: 2 is not a class from 0 to 1"),
        (GOOD.replace("\t7\t", "\tseven\t", 1), "row 2: column I8: 'seven' is not a number"),
        (
            GOOD.replace("\t7\t", f"\t{'7' * 60}\t", 1),
            f"row 2: column I8: '{'7' * 60}' is too large for a float32, or infinite",
        ),
    ],
)
def test_a_row_that_is_not_as_it_should_be_is_named(tmp_path, row, message):
    file = tmp_path / "rows.tsv"
    file.write_text(f"{GOOD}\n{row}\n{GOOD}\n")
    with pytest.raises(DataError, match=rf"rows.tsv, {message}; set data.max_bad_rows="):
        criteo(file)
    source = criteo(file, max_bad_rows=1)
    assert source.num_train_examples == 2
    assert source.facts["num_bad_rows"] == 1
    assert source.warnings[0] == f"1 malformed rows skipped, the first: {file}, {message}"
    file.write_text(f"{GOOD}\n{row}\n{GOOD}\n{row}\n")
    with pytest.raises(DataError, match=r"row 4: .*malformed rows: 2 so far, data.max_bad_rows=1"):
        criteo(file, max_bad_rows=1)


def test_rows_are_the_same_whether_others_are_bad(tmp_path):
    """Where all are good they are read another way."""
    odd = [GOOD.replace("\t7\t", f"\t{count}\t", 1) for count in ("7", "", " 8", "+9", "-2.5", ".5", "1e3", "3.")]
    (tmp_path / "good.tsv").write_text("\n".join(odd))
    (tmp_path / "bad.tsv").write_text("\n".join([*odd, "no row"]))
    (good, one), (bad, other) = (
        all_of(criteo(tmp_path / name, eval_path=str(tmp_path / eval_name), max_bad_rows=1).evaluation(batch_size=3))
        for name, eval_name in (("bad.tsv", "good.tsv"), ("good.tsv", "bad.tsv"))
    )
    assert good["counts"][:, 7].tolist() == [7, 0, 8, 9, -2.5, 0.5, 1000, 3]
    assert one.tolist() == other.tolist()
    for name, values in good.items():
        assert values.tolist() == bad[name].tolist()


def test_files_that_cannot_be_used_are_reported(tmp_path):
    with pytest.raises(DataError, match=r"nothing-\*: no such file"):
        criteo(tmp_path / "nothing-*")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="the folder is empty"):
        criteo(tmp_path / "folder")
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(DataError, match=r"empty\.tsv is empty"):
        criteo(tmp_path / "empty.tsv")
    (tmp_path / "good.tsv").write_text(GOOD + "\n")
    whole = gzip.compress(f"{GOOD}\n".encode() * 1000)
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.tsv\.gz cannot be read to its end"):
        criteo(tmp_path / "good.tsv", eval_path=str(tmp_path / "cut.tsv.gz"))
    (tmp_path / "nothing.tsv.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match=r"there is no row in .*nothing\.tsv\.gz"):
        criteo(tmp_path / "nothing.tsv.gz")
    (tmp_path / "header.tsv").write_text("label\tcounts\n")
    with pytest.raises(DataError, match=r"header\.tsv, row 1: 2 fields instead of 40"):
        criteo(tmp_path / "header.tsv")
    with pytest.raises(ConfigError, match=r"data.eval_path: .*good\.tsv is also a training file"):
        criteo(tmp_path / "good.tsv", eval_path=str(tmp_path / "folder" / ".." / "good.tsv"))
    with pytest.raises(ConfigError, match=r"data.vocabulary: .* holds no vocabulary"):
        criteo(tmp_path / "good.tsv", vocabulary=str(tmp_path))
    with pytest.raises(ConfigError, match=r"data.num_buckets: is 0"):
        criteo(tmp_path / "good.tsv", num_buckets=0)


def test_rows_are_prepared_once_and_again_where_a_set_is_not_whole(tmp_path):
    from psrun.data import files

    folder, cache, messages = synthesize(tmp_path / "synthetic"), tmp_path / "cache", []

    def rows() -> list[float]:
        source = criteo(folder / "train-*", cache=str(cache), tell=messages.append)
        batches = source.train(batch_size=500, seed=np.int64(1)).take(1).as_numpy_iterator()
        return next(batches)[0]["counts"].tolist()

    first = rows()
    assert messages[-1].endswith("(3 of 3 files): 500 rows so far")
    (prepared_set,) = (path for path in cache.iterdir() if path.is_dir() and path.name != "digests")
    messages.clear()
    assert rows() == first
    assert messages == []
    (cache / f".{prepared_set.name}.{socket.gethostname()}.1").mkdir()  # by a process that was killed
    truncated(prepared_set / "train.arrow")
    assert rows() == first
    assert messages
    assert [path for path in cache.iterdir() if path.is_dir() and path.name != "digests"] == [prepared_set]
    (folder / "train-00000-of-00003.tsv").write_text(GOOD + "\n")
    assert criteo(folder / "train-*", cache=str(cache)).num_train_examples == 1 + 166 + 167
    file = tmp_path / "no folder"
    file.touch()
    with pytest.raises(
        DataError,
        match=r"cannot be written to .*no folder.*: File exists; choose a folder on another disk: data.cache=FOLDER",
    ):
        criteo(folder / "train-*", cache=str(file))
    assert files.cache() != cache


def test_a_vocabulary_is_counted_and_used(tmp_path, capsys):
    folder = synthesize(tmp_path / "synthetic")
    words = tmp_path / "words"
    arguments = ["vocabulary", str(folder / "train-*"), str(words), "--min-count", "2", "--num-buckets", "16"]
    assert commands.main(arguments) == ExitCode.DONE
    assert f"data.vocabulary={words}" in capsys.readouterr().out.replace("\n", "")
    read = as_csv_reads_it(sorted(folder.glob("train-*")))
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

    from psrun.models.model import prepared

    source = criteo(folder / "train-*", eval_path=str(folder / "eval.tsv"), vocabulary=str(words))
    preprocessing, num_ids = prepared(source)
    lines = (words / "C3.txt").read_text().splitlines()
    assert num_ids["C3"] == len(lines) + 1
    features, _ = all_of(source.evaluation(batch_size=200))
    ids = preprocessing(features)["C3"].numpy()[:, 0]
    known = {value.encode(): 1 + place for place, value in enumerate(lines)}
    assert ids.tolist() == [known.get(value, 0) for value in features["C3"][:, 0]]


@pytest.mark.thorough
def test_a_vocabulary_belongs_to_the_run(train, tmp_path):
    """An export has it within; a run does not go on with another one."""
    import tensorflow as tf

    from psrun.data import load

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
    features, label = next(iter(criteo(folder / "train-*", eval_path=f"{folder}/eval.tsv").evaluation(batch_size=200)))
    predictions = serve(**features)["prediction"]
    loss = tf.keras.losses.BinaryCrossentropy()(label, predictions)
    assert float(loss) == pytest.approx(result["metrics"]["val_loss"], rel=1e-4)
    assert len(np.unique(predictions)) > 10
    message = f"data.vocabulary: differs from the vocabulary that the run in {run.path} was trained with"
    with pytest.raises(ConfigError, match=message):
        load.load_source(
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
    for name in ("one", "other"):
        assert commands.main(["synthesize", str(tmp_path / name), "--num-examples", "50", "--gzip"]) == ExitCode.DONE
    assert "AUC" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["eval.tsv.gz", *(f"train-0000{n}-of-00004.tsv.gz" for n in range(4)), "truth.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-examples", "0"], "num-files is 4"),
        (["--num-values", "0"], "num-values is 0"),
        (["--empty", "1"], "empty is 1"),
        (["--num-files", "0"], "num-files is 0"),
    ],
)
def test_what_cannot_be_synthesized_is_reported(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        commands.main(["synthesize", str(tmp_path / "synthetic"), *arguments])
    assert not (tmp_path / "synthetic").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        commands.main(["synthesize", str(tmp_path / "full")])


def test_the_published_layout_is_read(tmp_path):
    """Two hundred rows of the real set, which are not part of psrun; there they have commas, a header and fractions."""
    sample = REPOSITORY.parent / "shared" / "data" / "criteo_sample.csv"
    if not sample.exists():
        pytest.skip("the sample is not here")
    read = list(csv.reader(sample.open()))[1:]
    file, other = tmp_path / "sample.tsv", tmp_path / "other.tsv"
    other.write_text(GOOD + "\n")
    file.write_text("".join("\t".join(field.removesuffix(".0") for field in row) + "\n" for row in read))
    features, label = all_of(criteo(other, eval_path=str(file)).evaluation(batch_size=64))
    assert len(label) == len(read) == 200
    assert label[:, 0].tolist() == [float(row[0]) for row in read]
    assert features["counts"].tolist() == [[float(field or 0) for field in row[1:14]] for row in read]


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


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("model=dlrm", "data=regression"), "dlrm requires features with ids; the data has x"),
        (("model=two_tower", "model.query_features=[C27]"), "lists the unknown feature 'C27'"),
        (("model=two_tower", "model.query_features=[C1,C1]"), "lists a feature twice"),
        (("model=two_tower", "model.query_features=[]"), "leaves one of the towers without features"),
        (("model=two_tower", "model.embedding_dim={C1: 4}"), "model.embedding_dim: gives C2 the width None"),
        (("model=wide_deep", "model.embedding_dim={default: 4, counts: 2}"), "names 'counts', which has no ids"),
        (("model=wide_deep", "model.embedding_dim=0"), "gives C1 the width 0"),
        (("model=two_tower", "model.hidden_units=[]"), "model.hidden_units: is required"),
        (("model=two_tower", "data=regression"), "got task=regression"),
    ],
)
def test_data_that_a_model_cannot_use_is_reported(train, tmp_path, pieces, message):
    file = tmp_path / "rows.tsv"
    file.write_text(f"{GOOD}\n" * 99)
    own = () if "data=regression" in pieces else (f"data.path={file}", *READ)
    with pytest.raises(ConfigError, match=message):
        train(*pieces, *own, "data._target_=psrun.data.regression.Regression" if not own else "seed=1",
              "cluster=none", "evaluation=none", "data.global_batch_size=64")  # fmt: skip
