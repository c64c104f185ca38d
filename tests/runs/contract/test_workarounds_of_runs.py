"""Surprising behaviour of libraries that psrun.runs works around.

A test that fails says that the library is mended: the workaround in the module that it names can go.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEGIN_AT_ONCE = """
import multiprocessing
import sys

from mlflow.store.tracking import sqlalchemy_store  # before the fork, so that all begin at once
from mlflow.tracking import MlflowClient

uri, num_processes = sys.argv[1], int(sys.argv[2])
context = multiprocessing.get_context("fork")
barrier = context.Barrier(num_processes)


def begin():
    barrier.wait(60)
    MlflowClient(tracking_uri=uri).search_experiments()


processes = [context.Process(target=begin) for _ in range(num_processes)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print(sum(process.exitcode != 0 for process in processes))
"""


@pytest.mark.release
def test_two_processes_cannot_begin_with_one_new_database_of_mlflow(tmp_path):
    """psrun.runs.trackers.mlflow holds the lock of the sweep while a job makes the tables."""
    pytest.importorskip("alembic")

    def num_failed(num_processes: int) -> int:
        uri = f"sqlite:///{tmp_path}/{num_processes}.db"
        command = [sys.executable, "-c", _BEGIN_AT_ONCE, uri, str(num_processes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert num_failed(1) == 0
    assert num_failed(2) > 0
