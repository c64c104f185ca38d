"""Recommenders on MovieLens 100k beside those of implicit: the table of docs/tutorials/movielens.md.

    pip install implicit==0.7.3
    python benchmarks/movielens.py FOLDER [--seeds N]

FOLDER is that of the tutorial, with ratings.csv and conf/. The last film of each user is held out; all films that the
user has not rated before are candidates. The same code computes the metrics of all. The options of the baselines are
the best of a few that were tried on the same films, as are psrun's.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.sparse
from rich.console import Console
from rich.table import Table

from psrun.recsys.metrics import ranking, retrieval

METRICS = ("recall@10", "ndcg@10")
_NO_TOWERS = ["~model.query_features", "~model.hidden_units", "model.temperature=1"]
OURS = {
    "psrun, matrix_factorization": [
        "model=matrix_factorization", "model.user=user", *_NO_TOWERS, "trainer.epochs=15",
    ],
    "psrun, two_tower": [],
    "psrun, sasrec": ["model=sasrec", "model.history=history", "model.newest=first", "~model.objective", *_NO_TOWERS],
}  # fmt: skip
Values = dict[str, float]


class Ratings:
    """The films of users: those of training, and the last one of each."""

    def __init__(self, path: Path) -> None:
        with path.open(newline="") as file:
            rows = [*csv.DictReader(file)]
        user = np.unique([row["user"] for row in rows], return_inverse=True)[1]
        film = np.unique([row["film"] for row in rows], return_inverse=True)[1]
        order = np.lexsort((np.arange(len(rows)), [float(row["time"]) for row in rows], user))
        is_last = np.zeros(len(rows), bool)
        is_last[order[np.append(np.diff(user[order]) > 0, True)]] = True
        self.num_films = int(film.max()) + 1
        self.trained = retrieval.Pairs.of(user[~is_last], film[~is_last])
        self.held_out = retrieval.Pairs.of(user[is_last], film[is_last])
        ones = np.ones(len(self.trained.user), np.float32)
        shape = (int(user.max()) + 1, self.num_films)
        self.matrix = scipy.sparse.csr_matrix((ones, (self.trained.user, self.trained.item)), shape)

    def values(self, scores: np.ndarray) -> Values:
        """The metrics of scores (users, films)."""
        pairs = (self.held_out.user, self.held_out.item), (self.trained.user, self.trained.item)
        rank, equal_or_higher, higher = retrieval.ranks(np.array(scores, np.float32), *pairs)
        count = len(rank)
        examples = ranking.RelevantExamples(
            self.held_out.user, np.ones(count), rank, higher, equal_or_higher - higher, np.full(count, self.num_films)
        )
        return {name: ranking.mean(*ranking.by_name(name).values(examples)) or 0.0 for name in METRICS}


def baselines(ratings: Ratings) -> dict[str, Callable[[int], Values]]:
    from implicit.als import AlternatingLeastSquares
    from implicit.nearest_neighbours import TFIDFRecommender

    matrix = ratings.matrix

    def popular(seed: int) -> Values:
        return ratings.values(np.tile(np.asarray(matrix.sum(0)), (matrix.shape[0], 1)))

    def neighbours(seed: int) -> Values:
        model = TFIDFRecommender(K=20)
        model.fit(matrix, show_progress=False)
        return ratings.values((matrix @ model.similarity).toarray())

    def factors(seed: int) -> Values:
        model = AlternatingLeastSquares(32, regularization=0.05, alpha=2, iterations=15, random_state=seed)
        model.fit(matrix, show_progress=False)
        return ratings.values(model.user_factors @ model.item_factors.T)

    return {
        "most popular": popular,
        "implicit, item-kNN (TF-IDF, 20)": neighbours,
        "implicit, ALS (32, alpha 2)": factors,
    }


def by_psrun(folder: Path, arguments: list[str], seed: int) -> Values:
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        command = [
            sys.executable, "-m", "psrun", "--config-dir", "conf", "experiment=movielens", *arguments, f"seed={seed}",
            "checkpoint=none", "tracker=none", f"hydra.run.dir={run}",
        ]  # fmt: skip
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        metrics = json.loads((run / "run.json").read_text())["metrics"]
    return {name: metrics[f"val_{name}"] for name in METRICS}


def rows(folder: Path, seeds: int) -> Iterator[tuple[str, list[Values]]]:
    ratings = Ratings(folder / "ratings.csv")
    for name, compute in baselines(ratings).items():
        yield name, [compute(seed) for seed in range(1, seeds + 1)]
    for name, arguments in OURS.items():
        yield name, [by_psrun(folder, arguments, seed) for seed in range(1, seeds + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    table = Table("model", *(f"{name}: mean (least to most)" for name in METRICS), box=None, pad_edge=False)
    for name, found in rows(options.folder, options.seeds):
        columns = [[each[metric] for each in found] for metric in METRICS]
        table.add_row(name, *(f"{statistics.mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in columns))
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
