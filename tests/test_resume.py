"""`psrun resume=RUN_FOLDER`: a run goes on where it stopped, also on another topology."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psrun import composition
from psrun.errors import ConfigError

QUICK = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]


def recorded(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"overrides": overrides}))
    return folder


def test_what_was_said_then_holds_as_far_as_nothing_else_is_said_now(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    folder = recorded(
        tmp_path / "a run", "cluster=local", "cluster.num_workers=3", "+model.x=1", "trainer.epochs=2", "seed=7"
    )
    found = composition.resumed([f"resume='{folder}'", "cluster=none", "trainer.epochs=5"])
    assert found == [
        "cluster=none", "trainer.epochs=5", f"resume='{folder}'", f"hydra.run.dir='{folder}'", "+model.x=1", "seed=7"
    ]  # fmt: skip
    assert composition.resumed(["seed=3"]) == ["seed=3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["resume=/no/such"], "there is no run in /no/such"), (["resume={}", "-m"], "in its own folder")],
)
def test_what_cannot_be_resumed_is_told(tmp_path, arguments, said):
    folder = recorded(tmp_path / "run")
    with pytest.raises(ConfigError, match=said):
        composition.resumed([argument.format(folder) for argument in arguments])


@pytest.mark.command
@pytest.mark.parametrize(
    "then",
    [
        ["cluster=none", "trainer=fit"],
        pytest.param(["cluster=inprocess", "cluster.num_ps=3", "partitioner=none"], marks=pytest.mark.cluster),
    ],
)
def test_a_run_goes_on_elsewhere(psrun, then):
    first = psrun("partitioner=fixed_shards", "optimizer=adam", *QUICK, "trainer.epochs=1")
    assert first.code == 0, first.stderr
    second = psrun(f"resume='{first.folder}'", *then, "trainer.epochs=3")
    assert second.code == 0, second.stderr
    assert "goes on from step 20" in second.stdout
    result = first.result  # as it is now
    assert result["status"] == "completed"
    assert result["steps"] == {"applied": 60, "scheduled": 60, "repeated": 0}
    assert result["cluster"]["topology"] == then[0].partition("=")[2]
    assert "optimizer=adam" in result["overrides"]
    assert [row["step"] for row in result["checkpoints"]] == [20, 40, 60]
    events = [json.loads(line) for line in (first.folder / "metrics.jsonl").read_text().splitlines()]
    times = [event["wall_s"] for event in events]
    assert times == sorted(times)


@pytest.mark.command
def test_another_model_or_optimizer_is_refused_with_what_differs(psrun):
    first = psrun("cluster=none", *QUICK, "trainer.epochs=1")
    for change, said in (
        ("model.embedding_dim=5", "embedding/embeddings is 8x5 float32 here and 8x20 float32 there"),
        ("optimizer=adam", "optimizer: is Adam; the one in"),
        ("checkpoint=none", "checkpoint: 'none' has nothing to resume from"),
    ):
        second = psrun(f"resume='{first.folder}'", change, "trainer.epochs=2")
        assert (second.code, said in second.stderr) == (2, True), second.stderr
    done = psrun(f"resume='{first.folder}'", "trainer.epochs=2")  # nothing of it was harmed
    assert (done.code, first.result["steps"]["applied"]) == (0, 40)
