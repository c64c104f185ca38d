"""Exact evaluation while tasks are killed, hang and are cut off: every example counts once."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from fault_injection import TASKS, Cluster
from outcomes import check_rebuilt
from support import HARNESS

pytestmark = pytest.mark.cluster

TESTS = str(HARNESS)
NUM_EXAMPLES = 12_000
ONE_PS = ("cluster=local", "cluster.num_ps=1")
RUN = [
    "model=dense", "~model.hidden_units", "model._target_=example_ids.model", "data._target_=example_ids.Numbered",
    "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={NUM_EXAMPLES}",
    "data.global_batch_size=20", "trainer.epochs=1", "trainer.steps_per_epoch=10", "optimizer=sgd",
    "optimizer.learning_rate=0.000001", "evaluation=exact",
]  # fmt: skip
USERS = ["+data.num_users=500", "evaluation.user=user"]  # with metrics of lists


def evaluating(cluster: Cluster, state: str = "evaluating") -> None:
    """Waits until the evaluation is under way, or what else is done by the workers."""
    beat = cluster.folder / ".tasks" / "chief-0.json"

    def under_way() -> bool:
        try:
            return json.loads(beat.read_text())["state"] == state
        except (OSError, ValueError):
            return False

    cluster.wait(under_way, state)


def counted_once(cluster: Cluster) -> None:
    evaluation = cluster.result["evaluation"]
    assert (evaluation["mode"], evaluation["examples_seen"]) == ("exact", NUM_EXAMPLES)
    assert evaluation["metrics"]["not_once"] == 0


def test_a_parameter_server_is_lost_in_the_middle(start):
    cluster = start("cluster=local", *RUN, *USERS, PYTHONPATH=TESTS)
    evaluating(cluster)
    cluster.kill("ps-0")
    assert cluster.end() == 0, cluster.stderr
    counted_once(cluster)


@pytest.mark.release
def test_a_worker_is_cut_off_in_the_middle(tasks, network):
    given = [*RUN, *USERS, "trainer=fit", "cluster.heartbeat_timeout_s=6", "cluster.connect_timeout_s=30"]
    for name in ("ps-0", "worker-0", "worker-1"):
        tasks(name, *given, PYTHONPATH=TESTS)
    chief = tasks("chief-0", *given, PYTHONPATH=TESTS)
    evaluating(chief)
    network.cut(network.hosts[TASKS["worker-1"]])
    assert chief.wait_for("failure")["task"] == "worker-1"
    assert chief.end() == 0, chief.stderr
    counted_once(chief)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory) -> Path:
    """The folder of a run that was trained with one process, on data that takes a while to evaluate."""
    trained = [each for each in (*RUN, *USERS) if not each.startswith("evaluation")]
    arguments = [*trained, "evaluation=none"]
    run = Cluster(tmp_path_factory.mktemp("trained"), "cluster=none", *arguments, PYTHONPATH=TESTS)
    try:
        assert run.end() == 0, run.stderr
    finally:
        run.close()
    return run.folder


@pytest.fixture
def trained(trained_once, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained_once, tmp_path / "trained")


def test_a_checkpoint_is_evaluated_on_a_cluster_of_several_processes_of_which_one_hangs(start, trained):
    before = (trained / "run.json").read_bytes()
    evaluated = start("cluster=local", f"resume='{trained}'", "mode=evaluate", "evaluation=exact",
                      "evaluation.user=user", "cluster.restart.heartbeat_timeout_s=6", PYTHONPATH=TESTS)  # fmt: skip
    evaluated.folder = trained / "evaluations" / "cluster"
    evaluating(evaluated)
    evaluated.stop("worker-1")
    assert evaluated.wait_for("failure")["task"] == "worker-1"
    assert evaluated.end() == 0, evaluated.stderr
    counted_once(evaluated)
    assert f"step 10 (exact, {NUM_EXAMPLES} examples)" in evaluated.stdout
    assert (trained / "run.json").read_bytes() == before
    check_rebuilt(evaluated.folder)
    exact = json.loads((trained / "evaluations" / "10-exact.json").read_text())
    alone = start(
        "cluster=none",
        f"resume='{trained}'",
        "mode=evaluate",
        "evaluation=direct",
        "evaluation.user=user",
        PYTHONPATH=TESTS,
    )
    assert alone.end() == 0, alone.stderr
    other = json.loads((trained / "evaluations" / "10-direct.json").read_text())
    assert {"ndcg@5", "recall@5", "gauc"} < set(exact["metrics"])
    assert exact["metrics"] == pytest.approx(other["metrics"], rel=1e-4)
    assert exact["estimates"][""]["users"] == 500
    assert evaluated.left() == []


def test_workers_predict_and_one_is_killed_in_the_middle(start, trained):
    before = (trained / "run.json").read_bytes()
    resumed = ["mode=predict", f"resume='{trained}'"]
    alone = start("cluster=none", "predict.path=alone.csv", "data.global_batch_size=100", *resumed, PYTHONPATH=TESTS)
    assert alone.end() == 0, alone.stderr
    cluster = start(*ONE_PS, "data.global_batch_size=10", *resumed, PYTHONPATH=TESTS)
    cluster.folder = trained / "predictions" / "cluster"
    evaluating(cluster, "predicting")
    cluster.wait(lambda: list(cluster.folder.parent.glob(".10.csv.*")), "part of the file")
    cluster.kill("worker-1")
    assert cluster.wait_for("failure")["task"] == "worker-1"
    assert not (trained / "predictions" / "10.csv").exists()  # nothing but the whole
    assert cluster.end() == 0, cluster.stderr
    assert f"{NUM_EXAMPLES} predictions of step 10 in" in cluster.stdout
    predicted, expected = rows(trained / "predictions" / "10.csv"), rows(alone.root / "alone.csv")
    assert [row["label"] for row in predicted] == [str(number) for number in range(NUM_EXAMPLES)]
    assert [float(row["prediction"]) for row in predicted] == pytest.approx(
        [float(row["prediction"]) for row in expected], rel=1e-4, abs=1e-5
    )
    assert {path.name for path in cluster.folder.parent.iterdir()} == {"10.csv", "cluster"}
    assert (trained / "run.json").read_bytes() == before
    assert cluster.left() == []


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_checkpoint_is_evaluated_on_a_cluster_that_somebody_else_starts(tasks, trained):
    resumed = [f"resume='{trained}'", "mode=evaluate", "evaluation=exact", "evaluation.user=user",
               "data.num_eval_examples=1000"]  # fmt: skip
    servers = [tasks(name, *resumed, PYTHONPATH=TESTS) for name in ("ps-0", "worker-0", "worker-1")]
    chief = tasks("chief-0", *resumed, PYTHONPATH=TESTS)
    assert chief.end() == 0, chief.stderr
    assert "step 10 (exact, 1000 examples)" in chief.stdout
    assert [server.end(within_s=20) for server in servers] == [0, 0, 0]


def test_the_only_worker_is_lost_and_comes_back(start):
    """Nobody else makes room in a queue for what the lost worker gives back."""
    cluster = start(*ONE_PS, "cluster.num_workers=1", "trainer=fit", *RUN, "evaluation=distributed",
                    "trainer.steps_per_epoch=300", "cluster.slow_workers={0: 0.03}", PYTHONPATH=TESTS)  # fmt: skip
    cluster.wait_for_step(100)
    cluster.kill("worker-0")
    assert cluster.wait_for("recovery")["task"] == "worker-0"
    evaluating(cluster)
    cluster.kill("worker-0")
    assert cluster.wait_for("failure", 2)["task"] == "worker-0"
    assert cluster.end() == 0, cluster.stderr
    assert {row["task"] for row in cluster.result["recoveries"]} == {"worker-0"}
    assert cluster.result["evaluation"]["examples_seen"] >= NUM_EXAMPLES
