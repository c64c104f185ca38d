"""Run folders as runs leave them behind, written without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from psrun.results.events import staleness_by_worker

CUSTOM_LOOP = {"kind": "custom_loop", "epochs": 2}
KINDS = {"none": {"kind": "none"}, "fixed_shards": {"kind": "fixed_shards", "num_shards": 2}}


def a_run(
    folder: Path, *, workers: int = 2, partitioner: str = "none", seed: int = 1, auc: float = 0.9,
    config: dict[str, Any] | None = None, **changes: Any,
) -> Path:  # fmt: skip
    """A run of two epochs, which loses a worker in the second.

    Args:
      config: keys of config.yaml that are otherwise.
      changes: keys of run.json that are otherwise; None leaves one out.
    """
    (folder / ".hydra").mkdir(parents=True)
    values = {
        "data": {"_target_": "psrun.data.datasets.HeroFeatures", "global_batch_size": 64},
        "model": {"_target_": "psrun.models.model.embedding", "embedding_dim": 20},
        "optimizer": {"_target_": "tf_keras.optimizers.Adagrad", "learning_rate": 1e-05},
        "cluster": {"kind": "local", "num_workers": workers, "num_ps": 2},
        "partitioner": KINDS[partitioner],
        "seed": seed,
        "resume": None,
        **(config or {}),
    }
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(values)))
    overrides = [f"cluster.num_workers={workers}", f"partitioner={partitioner}", f"seed={seed}"]
    rate = 1000.0 * workers**0.8 + seed
    parts = 2 if partitioner == "fixed_shards" else 1
    lost = {"task": "worker-1", "cause": "was killed by SIGKILL", "at_s": 7.0, "seconds": 2.0, "steps_lost": 0}
    result = {
        "status": "completed", "mode": "train", "exit_code": 0, "error": None, "overrides": overrides,
        "cluster": {"topology": "local", "num_workers": workers, "num_ps": 2}, "versions": {"psrun": "0.1.0"},
        "placement": [
            {"variable": "table", "shard": shard, "task": f"ps-{shard}", "bytes": 6400 // parts, "kind": "model"}
            for shard in range(parts)
        ],
        "metrics": {"loss": 0.5, "val_loss": 0.4, "val_auc": auc}, "steps": {"applied": 200, "scheduled": 200},
        "steps_per_s": rate / 64, "examples_per_s": rate, "time_to_first_step_s": 3.0, "wall_s": 12.0,
        "recoveries": [lost],
        "step_time": {
            "input_s": 0.001, "traffic_s": 0.004, "compute_s": 0.002, "other_s": 0.001, "bottleneck": "traffic"
        },
        "staleness": staleness_by_worker({"worker-0": {0: 40, 1: 50, 2: 8, 5: 2}}),
    }  # fmt: skip
    kept = {key: value for key, value in {**result, **changes}.items() if key not in changes or value is not None}
    (folder / "run.json").write_text(json.dumps(kept))
    events: list[dict[str, Any]] = []
    for epoch in (1, 2):
        at = {"step": 100 * epoch, "wall_s": 4.0 * epoch}
        metrics, speed = {"loss": 1.0 / epoch, "auc": auc - 0.1 / epoch}, rate / 64 + epoch
        speeds = {"steps_per_s": speed, "examples_per_s": 64 * speed}
        events += [
            {"event": "epoch", **at, "epoch": epoch, "metrics": metrics, "seconds": 2.0, **speeds},
            {"event": "checkpoint", **at, "path": "ckpt", "seconds": 0.1},
            {"event": "evaluation", **at, "mode": "exact", "examples_seen": 9, "metrics": metrics},
        ]
    failure = {"event": "failure", "step": 150, "wall_s": 7.0, "task": "worker-1", "cause": "was killed by SIGKILL"}
    events += [{**failure, "action": "restarting worker-1"}, {"event": "recovery", "step": 160, "wall_s": 9.0, **lost}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def a_real_run(
    folder: Path, *, workers: int = 2, cluster: dict[str, Any] | None = None, size: tuple[int, int] | None = None,
    config: dict[str, Any] | None = None, **changes: Any,
) -> Path:  # fmt: skip
    """A run of 200 steps in 20 s, in which two workers wait 1 s and 3 s.

    Args:
      cluster: keys of its configuration that are otherwise.
      size: the workers that train, and the parameter servers; None as configured.
    """
    num_workers, num_ps = size or (workers, 2)
    found = {
        "steps_per_s": 10.0, "examples_per_s": 640.0, "recoveries": [], "overrides": [],
        "cluster": {"topology": "local", "num_workers": num_workers, "num_ps": num_ps},
        "consistency": {"mode": "async", "waited_s": {"worker-0": 1.0, "worker-1": 3.0}},
    }  # fmt: skip
    keys = {"kind": "local", **_workers(workers), "isolate": "auto", **(cluster or {})}
    given = {"trainer": CUSTOM_LOOP, "cluster": keys, **(config or {})}
    return a_run(folder, workers=workers, config=given, **{**found, **changes})


def a_virtual_run(folder: Path, *, workers: int = 2, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A run of 200 steps in 16 virtual seconds, of which 8 steps/s were predicted."""
    rates = {"steps_per_s": 11.0, "examples_per_s": 704.0}
    found = {
        "steps_per_s": None, "examples_per_s": None, "prediction": a_prediction(8.0), "overrides": [],
        "virtual": {"time_s": 16.0, "seconds": 8.0, **rates}, "recoveries": [], "step_time": None,
        "cluster": {"topology": "virtual", "num_workers": workers, "num_ps": 2},
        "consistency": {"mode": "async", "waited_s": {"worker-0": 0.8, "worker-1": 0.8}},
    }  # fmt: skip
    keys = {"kind": "virtual", **_workers(workers), "step_s": None, "like": "runs/one"}
    given = {"trainer": CUSTOM_LOOP, "cluster": keys, **(config or {})}
    a_run(folder, workers=workers, config=given, **{**found, **changes})
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "epoch":
            event["virtual"] = {"time_s": 8.0 * event["epoch"], "seconds": 8.0, **rates}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def a_plan(folder: Path, *, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A plan that predicts 12 steps/s."""
    unknown = dict.fromkeys(("cluster", "virtual", "consistency", "metrics", "steps", "staleness", "wall_s"))
    found = {**unknown, "mode": "plan", "prediction": a_prediction(12.0), **changes}
    return a_virtual_run(folder, config={"mode": "plan", **(config or {})}, **found)


def a_prediction(steps_per_s: float) -> dict[str, Any]:
    """A prediction as run.json has it."""
    medians = {"steps_per_s": steps_per_s, "staleness": 0.5, "waiting": 0.1}
    return {name: {"median": value, "least": 0.9 * value, "most": 1.1 * value} for name, value in medians.items()}


def _workers(number: int) -> dict[str, Any]:
    return {"num_workers": number, "num_ps": 2, "placement": "greedy", "slow_workers": None}


def a_sweep(folder: Path) -> Path:
    """Twelve runs in subfolders 0 to 11; the third failed, and the last never began."""
    grid = [(workers, kind, seed) for workers in (1, 2, 4) for kind in KINDS for seed in (1, 2)]
    failed = {"type": "TrainingError", "message": "the loss\nbecame nan", "task": "chief-0"}
    for index, (workers, kind, seed) in enumerate(grid):
        bad = {"status": "failed", "exit_code": 1, "error": failed, "metrics": None} if index == 2 else {}
        a_run(folder / str(index), workers=workers, partitioner=kind, seed=seed, auc=0.8 + index / 100, **bad)
    (folder / "11" / "run.json").unlink()
    (folder / "11" / "metrics.jsonl").unlink()
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    return folder


def a_recorded_sweep(folder: Path, **changes: object) -> Any:
    """A sweep of three jobs, a `psrun.runs.sweeps.sweep.Sweep`: the second is the best, the third has not started."""
    from psrun.runs.sweeps.sweep import Job, Sweep  # the core's tests have runs, and no sweeps

    sweep = Sweep(folder, ["seed=1,2,3"], metric="val_auc", mode="max", status="interrupted")
    for number, auc in enumerate((0.7, 0.9)):
        a_run(folder / str(number), seed=number, auc=auc)
    (folder / "2" / ".hydra").mkdir(parents=True)
    (folder / "2" / "config.yaml").write_text((folder / "1" / "config.yaml").read_text().replace("seed: 1", "seed: 2"))
    sweep.jobs = {number: Job(number, [f"seed={number}"], str(number)) for number in range(3)}
    for name, value in changes.items():
        setattr(sweep, name, value)
    sweep.write()
    return sweep
