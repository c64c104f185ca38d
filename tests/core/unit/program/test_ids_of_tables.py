"""Checkpoints say which values have which rows of a table."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import tensorflow as tf
import tf_keras

from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.storage import Store
from psrun.data.source import Feature
from psrun.errors import CheckpointError
from psrun.layers import Embedding, EmbeddingCollection, Table
from psrun.models.model import Model, Preparation
from psrun.program import embeddings

pytestmark = pytest.mark.tensorflow


def model(features, tables):
    """A model that looks up each feature of preprocessed data in a collection, and `word` in layers besides."""
    inputs = {name: tf_keras.Input((1,), dtype="int64", name=name) for name in features}
    by_feature = EmbeddingCollection(tables, name="tables", oov="row")(inputs)
    rows = [by_feature[name] for name in features]
    rows.append(Embedding(9, 2, name="spread")(inputs["word"]))
    rows.append(tf_keras.layers.Embedding(9, 2, name="plain")(inputs["word"] + 1))
    return Model(tf_keras.Model(inputs, tf_keras.layers.Add()(rows)), Preparation(features))


def test_ids_of_words_of_files_and_of_hashed_values(tmp_path):
    listed = tmp_path / "numbers.txt"
    listed.write_text("30\n10\n20\n")
    features = {
        "word": Feature((1,), tf.string, vocabulary=("b", 'a "quoted"\nword')),
        "number": Feature((1,), tf.int64, vocabulary=listed),
        "text": Feature((1,), tf.string, num_buckets=100),
        "integer": Feature((1,), tf.int64, num_buckets=5),
        "own": Feature((1,), tf.int64),  # the model itself makes ids of it
    }
    sizes = {"word": 3, "number": 4, "text": 100, "integer": 5, "own": 7}
    tables = [Table(f"{name}_rows", (name,), size, 2) for name, size in sizes.items()]
    made = model(features, tables)
    described = embeddings.described(made.network, made.ids)
    assert set(described) == {*(table.name for table in tables), "spread", "plain"}
    assert described["text_rows"]["num_ids"] == 100
    assert described["text_rows"]["column_bits"] == 3
    assert {described[name]["oov_row"] for name in ("text_rows", "own_rows")} == {True}
    rules = {name: described[f"{name}_rows"]["features"][name] for name in features}
    assert rules == {
        "word": {"dtype": "string", "vocabulary": "word.jsonl"},
        "number": {"dtype": "int64", "vocabulary": "number.jsonl"},
        "text": {"dtype": "string", "num_buckets": 100, "hash": "farmhash64"},
        "integer": {"dtype": "int64", "num_buckets": 5, "hash": "multiply-shift"},
        "own": {},
    }
    assert described["spread"] == {
        "num_ids": 9,
        "oov_row": False,
        "column_bits": 1,
        "features": {"word": rules["word"]},
    }
    assert described["plain"] == {"num_ids": 9, "oov_row": False, "column_bits": 0, "features": {}}
    store = Store(tmp_path / "checkpoints")
    store.write_vocabularies(embeddings.vocabularies(made.ids))
    words = (store.vocabularies / "word.jsonl").read_text().splitlines()
    numbers = (store.vocabularies / "number.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in words] == ["b", 'a "quoted"\nword']
    assert [json.loads(line) for line in numbers] == [30, 10, 20]
    batch = {
        "word": tf.constant([[json.loads(line)] for line in words]),
        "number": tf.constant([[30], [10]], tf.int64),
        "text": tf.constant([["x"], ["y"]]),
        "integer": tf.constant([[4], [3]], tf.int64),
        "own": tf.constant([[6], [0]], tf.int64),
    }
    ids = made.preprocessed(batch)
    assert ids["word"].numpy().tolist() == [[1], [2]]
    assert ids["number"].numpy().tolist() == [[1], [2]]


VOCABULARIES = {
    "words": (tf.string, ("a", "b")),
    "words after Keras' value for others": (tf.string, ("[UNK]", "a", "b")),
    "Keras' value for others is a word elsewhere": (tf.string, ("a", "[UNK]", "b")),
    "numbers after Keras' value for others": (tf.int64, (-1, 30, 10)),
    "Keras' value for others is a number elsewhere": (tf.int64, (30, -1)),
    "words of a file": (tf.string, b"a\nb\n"),
    "a file without an end of its last line": (tf.string, b"a\nb"),
    "a file with Keras' value for others": (tf.string, b"a\nb\n[UNK]\n"),
    "a file of another system": (tf.string, b"a\r\nb\r\n"),
    "a file with a carriage return in a word": (tf.string, b"a\rb\nc\n"),
    "a file with other separators in words": (tf.string, "a\u2028b\nc\u0085d\ne\x0cf\n".encode()),
    "separators in words": (tf.string, ("a\u2028b", "c\u0085d", "e\rf", "g\nh", "i\x1cj")),
    "numbers of a file of another system": (tf.int64, b"30\r\n-1\r\n"),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_line_i_of_a_written_vocabulary_has_the_id_i(tmp_path, name):
    dtype, vocabulary = VOCABULARIES[name]
    if isinstance(vocabulary, bytes):
        (tmp_path / "listed.txt").write_bytes(vocabulary)
        vocabulary = tmp_path / "listed.txt"
    features = {"word": Feature((1,), dtype, vocabulary=vocabulary)}
    made = model(features, [Table("rows", ("word",), 9, 2)])
    store = Store(tmp_path / "checkpoints")
    store.write_vocabularies(embeddings.vocabularies(made.ids))
    values = [json.loads(line) for line in (store.vocabularies / "word.jsonl").read_text("utf-8").splitlines()]
    ids = made.preprocessed({"word": tf.constant(values, dtype, (len(values), 1))})["word"]
    assert ids.numpy().ravel().tolist() == [*range(1, len(values) + 1)]
    assert Preparation(features).num_ids["word"] == len(values) + 1


def test_features_with_similar_names_have_vocabularies_of_their_own():
    names = ("a/b", "a.b", "a%2Fb")
    features = {name: Feature((1,), tf.string, vocabulary=(name,)) for name in names}
    written = embeddings.vocabularies(features)
    assert [list(values) for values in written.values()] == [[name] for name in names]
    assert not any("/" in file for file in written)


class Failing:
    """A save whose values cannot be written."""

    def write(self, prefix):
        raise OSError("no space")


def test_a_save_after_a_failed_one_writes_all_words(tmp_path):
    listed = tmp_path / "listed.txt"
    features = {"word": Feature((), tf.string, ("a", "b")), "listed": Feature((), tf.string, listed)}
    program = SimpleNamespace(model=SimpleNamespace(ids=features), optimizer=tf_keras.optimizers.SGD())
    store = Store(tmp_path / "checkpoints")
    saves = Checkpoints(program, store, None, pytest.fail, checkpoint=None, contents=None, saving=Failing())
    for reason in ("listed.txt", "no space"):
        with pytest.raises(CheckpointError, match=reason):
            saves._save(SimpleNamespace(step=3))
        listed.write_text("c\n")
    texts = {file.name: file.read_text() for file in store.vocabularies.iterdir()}
    assert texts == {"word.jsonl": '"a"\n"b"\n', "listed.jsonl": '"c"\n'}


class OfKeras(tf_keras.layers.Embedding):
    """Looks up other ids than it is called with, as subclasses may."""

    def call(self, inputs):
        return super().call((inputs + 1) % 8)


class OfPsrun(Embedding):
    pass


class Collection(EmbeddingCollection):
    pass


def of_collection(kind):
    return lambda inputs: kind([Table("table", ("item",), 8, 2)])({"item": inputs})["item"]


@pytest.mark.parametrize(
    ("layer", "num_ids"),
    [
        (tf_keras.layers.Embedding(8, 2, name="table"), 8),
        (Embedding(8, 2, name="table"), 8),
        (of_collection(EmbeddingCollection), 8),
        (OfKeras(8, 2, name="table"), None),
        (OfPsrun(8, 2, name="table"), None),
        (of_collection(Collection), None),
    ],
)
def test_which_ids_rows_belong_to_is_unknown_of_classes_of_the_user(layer, num_ids):
    inputs = tf_keras.Input((1,), dtype="int64", name="item")
    described = embeddings.described(tf_keras.Model(inputs, layer(inputs)), {})
    assert {name: each["num_ids"] for name, each in described.items()} == {"table": num_ids}


def test_there_are_no_rules_without_preprocessing_of_psrun():
    inputs = tf_keras.Input((1,), dtype="int64", name="item")
    network = tf_keras.Model(inputs, tf_keras.layers.Embedding(4, 2, name="items")(inputs))
    assert embeddings.described(network, Model(network).ids)["items"]["features"] == {"item": {}}
