#!/usr/bin/env bash
# MLflow 3.17.2 (mlflow-skinny), SQLAlchemy 2.1.9, alembic 1.20.1, Python 3.11: of processes that create a client for a new SQLite database at the
# same time, as two jobs of a sweep do, most fail: each makes the tables and migrates them, with no lock. Seen: of four
# processes at least one ends with "duplicate column name", "table ... already exists" or alembic's "expected to match
# one row"; one by one, all succeed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
cat >"$folder/main.py" <<'END'
import multiprocessing
import sys
import tempfile


def begin(uri, barrier):
    from mlflow.tracking import MlflowClient

    barrier.wait(120)
    MlflowClient(tracking_uri=uri).search_experiments()


def failed(at_once):
    context = multiprocessing.get_context("spawn")
    uri = f"sqlite:///{tempfile.mkdtemp(dir=sys.argv[1])}/runs.db"
    barrier = context.Barrier(4 if at_once else 1)
    processes = [context.Process(target=begin, args=(uri, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
        if not at_once:
            process.join()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    one_by_one, at_once = failed(False), failed(True)
    print(f"of 4 processes failed: one by one {one_by_one}, at once {at_once}")
    assert (one_by_one, at_once > 0) == (0, True)
END
"$folder/venv/bin/python" "$folder/main.py" "$folder" 2>/dev/null
