"""What a recommender gives: the first items of each user as a file, and as a SavedModel that does not need psrun."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from bounds import BOUND_S
from outcomes import rows

pytestmark = pytest.mark.command

NUM_USERS, NUM_ITEMS, K = 12, 9, 3
FEATURES = "{user: {dtype: string, num_buckets: 500}, age: {}, item: {dtype: int64, num_buckets: 500}}"
# Where psrun and Keras cannot be imported.
SERVES = """
import json, sys
sys.modules["psrun"] = sys.modules["tf_keras"] = sys.modules["keras"] = None
import tensorflow as tf
users, ages = json.load(sys.stdin)
recommend = tf.saved_model.load(sys.argv[1]).signatures["recommend"]
found = recommend(user=tf.constant(users), age=tf.constant(ages))
print(json.dumps([found["item"].numpy().tolist(), found["score"].numpy().tolist()]))
"""


def test_the_first_items_of_each_user_are_written_and_served_without_psrun(psrun, tmp_path):
    rng = np.random.default_rng(0)
    pairs = {(user, item) for user in range(NUM_USERS) for item in rng.choice(NUM_ITEMS, 4, replace=False).tolist()}
    lines = [f"u{user},{user / 10},{item},1,{time}" for time, (user, item) in enumerate(sorted(pairs))]
    (tmp_path / "seen.csv").write_text("\n".join(["user,age,item,liked,time", *lines]) + "\n")
    trained = psrun(
        "data=table", "data.path=seen.csv", "data.label=liked", "data.task=regression", f"data.features={FEATURES}",
        "data.split={by: last, user: user, column: time}", "model=two_tower", "model.query_features=[user,age]",
        "model.item=item", "model.objective=softmax", "evaluation.user=user", "evaluation.item=item",
        "evaluation.candidates=all", "model.metrics=[recall@3,coverage@3]", "cluster=none", "trainer.epochs=2",
        "export.at_end=true", f"export.top_k={NUM_ITEMS}", "checkpoint.best_metric=val_recall@3",
        "checkpoint.best_mode=max",
    )  # fmt: skip
    assert trained.code == 0, trained.stderr
    assert {"val_recall@3", "val_coverage@3"} < set(trained.result["metrics"])
    assert trained.stdout.splitlines()[-1].startswith("next: psrun predict run ")
    assert trained.stdout.endswith(" predict.top_k=10\n")
    predicted = psrun("mode=predict", f"resume={trained.folder}", f"predict.top_k={K}", "predict.path=top.csv")
    assert predicted.code == 0, predicted.stderr
    first = {}
    for row in rows(tmp_path / "top.csv"):
        first.setdefault(row["user"], []).append((int(row["item"]), float(row["score"])))
        assert int(row["rank"]) == len(first[row["user"]])
    assert {user: len(items) for user, items in first.items()} == {f"u{user}": K for user in range(NUM_USERS)}

    users = [[[f"u{user}"] for user in range(NUM_USERS)], [[user / 10] for user in range(NUM_USERS)]]
    served = subprocess.run(
        [sys.executable, "-c", SERVES, trained.result["export"]], input=json.dumps(users),
        capture_output=True, text=True, timeout=BOUND_S, check=False, cwd="/",
    )  # fmt: skip
    assert served.returncode == 0, served.stderr
    for user, (items, scores) in enumerate(zip(*json.loads(served.stdout))):
        assert sorted(items) == list(range(NUM_ITEMS))
        own = sorted(item for each, item in pairs if each == user)
        last = max((time, item) for time, (each, item) in enumerate(sorted(pairs)) if each == user)[1]
        new = [(item, score) for item, score in zip(items, scores) if item not in own or item == last]
        assert [item for item, _ in first[f"u{user}"]] == [item for item, _ in new[:K]]
        assert [score for _, score in first[f"u{user}"]] == pytest.approx([score for _, score in new[:K]], rel=1e-4)


def test_a_file_of_users_items_and_times_needs_no_label(psrun, tmp_path):
    rng = np.random.default_rng(0)
    pairs = [(user, item) for user in range(NUM_USERS) for item in rng.choice(NUM_ITEMS, 4, replace=False).tolist()]
    lines = [f"u{user},i{item},{time}" for time, (user, item) in enumerate(pairs)]
    lines.append(f"u0,i{pairs[0][1]},{len(pairs)}")
    (tmp_path / "shop.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    again = f"u1,i{pairs[4][1]},3"  # what u1 has in the training
    (tmp_path / "next.csv").write_text(f"user,item,time\n{again}\nu2,new,4\n")
    trained = psrun(
        "data=table", "data.path=shop.csv", "data.label=null", "data.split={by: last, user: user, column: time}",
        "model=matrix_factorization", "model.user=user", "model.item=item", "model.objective=softmax",
        "evaluation.user=user", "evaluation.item=item", "evaluation.candidates=all", "model.metrics=[recall@3]",
        "cluster=none", "trainer.epochs=2",
    )  # fmt: skip
    assert trained.code == 0, trained.stderr
    assert 0 <= trained.result["metrics"]["val_recall@3"] <= 1
    assert "label" not in trained.result["data"]
    evaluated = psrun("mode=evaluate", f"resume={trained.folder}", "data.eval_path=next.csv")
    assert evaluated.code == 0, evaluated.stderr
    assert " ".join(trained.stdout.split()).count(f" 1 of {NUM_USERS} held-out interactions ") == 1
    assert " 1 of 2 held-out interactions " in " ".join(evaluated.stdout.split())
    for name, more in (("held_out.csv", ()), ("rows.csv", ("data.eval_path=next.csv",))):
        predicted = psrun("mode=predict", f"resume={trained.folder}", f"predict.path={name}", *more)
        assert predicted.code == 0, predicted.stderr
        assert {*rows(tmp_path / name)[0]} == {"prediction"}
    top = psrun("mode=predict", f"resume={trained.folder}", f"predict.top_k={K}", "predict.path=top.csv")
    assert top.code == 0, top.stderr
    assert len(rows(tmp_path / "top.csv")) == NUM_USERS * K
    exported = psrun("mode=export", f"resume={trained.folder}", f"export.top_k={K}")
    assert exported.code == 0, exported.stderr


def test_a_model_without_towers_has_no_recommendations_to_export(psrun):
    refused = psrun(
        "model=wide_deep", "cluster=none", "export.top_k=3", "evaluation.user=x", "evaluation.item=y", "data=features"
    )
    assert (refused.code, "export.top_k: needs a model with towers" in refused.stderr) == (2, True)


@pytest.mark.thorough
def test_replicas_count_the_items_that_each_of_them_has_seen(psrun, tmp_path):
    lines = [f"u{number % 7},{number % 5},1" for number in range(64)]
    (tmp_path / "seen.csv").write_text("\n".join(["user,item,liked", *lines]) + "\n")
    trained = psrun(
        "data=table", "data.path=seen.csv", "data.label=liked", "data.task=regression", "data.split=null",
        "data.features={user: {dtype: string, num_buckets: 50}, item: {dtype: int64, num_buckets: 50}}",
        "model=matrix_factorization", "model.user=user", "model.item=item", "model.objective=softmax",
        "cluster=mirrored", "cluster.num_replicas=2", "trainer.epochs=1", "evaluation=none",
        "data.global_batch_size=16",
    )  # fmt: skip
    assert trained.code == 0, trained.stderr
    (index,) = trained.folder.glob("checkpoints/*4.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    (counts,) = [name for name in reader.get_variable_to_shape_map() if "counts/.ATTRIBUTES" in name]
    assert sorted(reader.get_tensor(counts)[0])[-5:] == [12, 13, 13, 13, 13]
