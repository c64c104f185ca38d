"""Kills the chief or a parameter server at a random moment of a save, again and again: does the run always resume?

    python tests/harness/save_faults.py [--kills N] [--seed N] [--rows N] [--folder FOLDER]

One `psrun cluster=local` with a table large enough that a save takes a while. Each time a save begins, a task is killed
after a random part of the time that a save takes; steps run meanwhile. The run must resume from the checkpoint that was
complete before, or from a newer one, and complete in the end with every checkpoint good and no other file. Exits with 0
if so.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from bounds import BOUND_S
from fault_injection import Cluster

from psrun.checkpoint.storage import Store
from psrun.errors import ExitCode

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_TASKS = ("chief-0", "ps-0", "ps-1")
_SAVES_MEASURED = 4


def _saving(store: Store) -> bool:
    """Whether there are files of a checkpoint that is not complete."""
    complete = {f"ckpt-{step}" for step in store.steps()}
    return any(file.name.split(".")[0].split("_")[0] not in complete for file in store.folder.glob("ckpt-*"))


def _wait(cluster: Cluster, condition, what: str) -> None:
    """As `Cluster.wait`, but with a short pause: a save may take a tenth of a second."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what} within {BOUND_S:.0f} s\n{cluster.stderr}"
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--folder", type=Path, help="where to put the run (default: the folder for temporary files)")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    chance = random.Random(options.seed)
    outcomes: Counter = Counter()
    with tempfile.TemporaryDirectory(prefix="psrun-save-faults-", dir=options.folder) as root:
        cluster = Cluster(
            Path(root), "--config-dir", str(BENCHMARKS / "conf"), "model=big_table", f"model.rows={options.rows}",
            "cluster=local", "cluster.num_workers=1", "cluster.num_ps=2", "partitioner=fixed_shards",
            "evaluation=none", "trainer.epochs=1000000", "trainer.steps_per_epoch=100", "checkpoint.every_steps=20",
            "checkpoint.max_to_keep=2", f"cluster.restart.budget={3 * options.kills}",
            "cluster.restart.max_backoff_s=0", PYTHONPATH=str(BENCHMARKS),
        )  # fmt: skip
        store = Store(cluster.folder / "checkpoints")
        try:
            cluster.wait_for("checkpoint", _SAVES_MEASURED)
            save_s = statistics.median(event["seconds"] for event in cluster.events("checkpoint")[1:])
            console.print(f"a save takes {save_s:.2f} s")
            for kill in range(1, options.kills + 1):
                restored = len(cluster.events("restored"))
                task = chance.choice(_TASKS)
                process = cluster.task(task)
                _wait(cluster, lambda: not _saving(store), "end of a save")
                _wait(cluster, lambda: _saving(store), "save")
                before = store.steps()[0]
                time.sleep(chance.uniform(0, save_s))
                cut = _saving(store)
                process.kill()
                went_on = cluster.wait_for("restored", restored + 1)["step"]
                assert went_on >= before, f"kill {kill}: {before} was complete, went on from {went_on}"
                outcomes[task, "cut short" if cut else "just done"] += 1
                cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 1)
            cluster.process.send_signal(signal.SIGTERM)
            code = cluster.end()
            processes = cluster.left()
        finally:
            cluster.close()
        assert code == ExitCode.RESTART, f"exit code {code}\n{cluster.stderr}"
        assert processes == [], f"left running: {processes}"
        verify = [sys.executable, "-m", "psrun", "checkpoint", "verify", str(cluster.folder)]
        assert subprocess.run(verify, check=False).returncode == 0, "a checkpoint is damaged"
        damaged = [event for event in cluster.events("warning") if "damaged" in event["message"]]
        assert not damaged, damaged
        assert not _saving(store), "files of a save that was cut short remain"
    table = Table("task killed", "the save was", "times", box=None, pad_edge=False)
    for (task, outcome), count in sorted(outcomes.items()):
        table.add_row(task, outcome, str(count))
    console.print(table)
    console.print(f"{sum(outcomes.values())} kills, and the run went on from the last complete checkpoint each time")


if __name__ == "__main__":
    main()
