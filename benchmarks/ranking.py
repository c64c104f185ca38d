"""Ranking metrics beside torchmetrics, the exact AUC beside Keras', and retrieval beside NumPy.

    pip install torchmetrics==1.9.0
    python benchmarks/ranking.py [--repetitions N] [--json FILE]

Full ranking: 6,040 users, 3,700 items, vectors of 32 numbers; one relevant item and 165 excluded ones each. psrun's
hit_rate, recall, ndcg and mrr at 10 from the scores, and torchmetrics' of the same scores, as it takes them: flat, with
the number of each user. AUC: evaluations (`direct`) of `wide_deep` on 200,000 generated examples with one metric or the
other. Retrieval: the top 10 of 1,000,000 items of 64 numbers for 64 queries at a time, in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from hydra import compose, initialize_config_module
from measured import Goal, Rates, in_turns, show_goals
from omegaconf import OmegaConf
from rich.console import Console

from psrun.cluster.strategy import Distribution
from psrun.config import parse
from psrun.data import load
from psrun.program.build import build, build_state, start_afresh
from psrun.recsys import pair_scores
from psrun.recsys.metrics import ranking, retrieval
from psrun.training.evaluation import modes

USERS, ITEMS, DIM, SEEN, K = 6040, 3700, 32, 165, 10
LIBRARY_ITEMS, LIBRARY_DIM, QUERIES = 1_000_000, 64, 64
OURS, TORCHMETRICS = "psrun, full ranking", "torchmetrics, full ranking"
EXACT, KERAS = "psrun's AUC", "Keras' AUC"
TOP, NUMPY = "psrun, top 10", "NumPy, top 10"
GOALS = (Goal(OURS, TORCHMETRICS, 2.0), Goal(EXACT, KERAS, 0.97), Goal(TOP, NUMPY, 1.0))
Work = Callable[[], object]


def full_ranking() -> dict[str, Work]:
    """A pass over all users from their scores, by each library."""
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(USERS, DIM)) @ rng.normal(size=(DIM, ITEMS))).astype(np.float32)
    pairs = np.argsort(rng.random((USERS, ITEMS)), axis=1)[:, : SEEN + 1]
    users = np.arange(USERS)
    excluded = np.repeat(users, SEEN), pairs[:, 1:].reshape(-1)
    names = ("hit_rate", "recall", "ndcg", "mrr")

    def ours() -> list[float | None]:
        rank, equal_or_higher, higher = retrieval.ranks(scores.copy(), (users, pairs[:, 0]), excluded)
        lengths = np.full(USERS, ITEMS - SEEN)
        examples = ranking.RelevantExamples(users, np.ones(USERS), rank, higher, equal_or_higher - higher, lengths)
        return [ranking.mean(*ranking.by_name(f"{name}@{K}").values(examples)) for name in names]

    works: dict[str, Work] = {OURS: ours}
    with contextlib.suppress(ImportError):
        import torch
        from torchmetrics import retrieval as theirs

        kept = np.ones((USERS, ITEMS), bool)
        kept[excluded] = False
        row, item = np.nonzero(kept)
        flat = torch.tensor(scores[row, item])
        target = torch.tensor(item == pairs[row, 0])
        index = torch.tensor(row)
        kinds = (theirs.RetrievalHitRate, theirs.RetrievalRecall, theirs.RetrievalNormalizedDCG, theirs.RetrievalMRR)

        def torchmetrics() -> list[float]:
            found = []
            for kind in kinds:
                metric = kind(top_k=K)
                metric.update(flat, target, indexes=index)
                found.append(float(metric.compute()))
            return found

        assert np.allclose(ours(), torchmetrics(), atol=1e-5), (ours(), torchmetrics())
        works[TORCHMETRICS] = torchmetrics
    return works


def evaluations() -> dict[str, Work]:
    """An evaluation of the same model with each AUC."""
    works: dict[str, Work] = {}
    for name, metric in ((EXACT, "AUC"), (KERAS, "{_target_: tf_keras.metrics.AUC}")):
        arguments = ["cluster=none", "model=wide_deep", "data=features", "data.num_eval_examples=200000",
                     "data.global_batch_size=1024", f"model.metrics=[{metric}]"]  # fmt: skip
        with initialize_config_module("psrun.conf", version_base="1.3"):
            run = parse.load(OmegaConf.to_container(compose("config", arguments), resolve=True))
        start_afresh(1)
        source = load.load_source(run)
        program = build(load.planned(run, source), source, Distribution(tf.distribute.get_strategy()))
        build_state(program)
        evaluator = modes.make(program)
        works[name] = lambda evaluator=evaluator: evaluator.evaluate(0, lambda: None)
    return works


def retrievals() -> dict[str, Work]:
    """The top 10 of all items for some queries."""
    rng = np.random.default_rng(0)
    items = rng.normal(size=(LIBRARY_ITEMS, LIBRARY_DIM)).astype(np.float32)
    queries = rng.normal(size=(QUERIES, LIBRARY_DIM)).astype(np.float32)

    def numpy() -> np.ndarray:
        scores = queries @ items.T
        chosen = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        own = np.take_along_axis(scores, chosen, axis=1)
        return np.take_along_axis(chosen, np.argsort(-own, axis=1), axis=1)

    vectors = pair_scores.ItemVectors.of(items)

    def top() -> np.ndarray:
        return pair_scores.top(vectors.products(queries), K)[0]

    works: dict[str, Work] = {TOP: top, NUMPY: numpy}
    assert (top() == numpy()).all()
    return works


def rates(repetitions: int) -> Iterator[Rates]:
    """Passes per second of each work, round by round; each is done once before."""
    for works in (full_ranking(), evaluations(), retrievals()):
        for work in works.values():
            work()
        for order in in_turns([*works], repetitions):
            found = {}
            for name in order:
                began_s = time.perf_counter()
                works[name]()
                found[name] = 1 / (time.perf_counter() - began_s)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="writes all rounds to a file")
    options = parser.parse_args()
    console = Console(highlight=False)
    rounds = [*rates(options.repetitions)]
    for name in dict.fromkeys(name for each in rounds for name in each):
        values = sorted(each[name] for each in rounds if name in each)
        console.print(f"{name}: {values[len(values) // 2]:.3g} passes/s")
    reached = show_goals(GOALS, rounds, console)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "goals": reached}, indent=2) + "\n")


if __name__ == "__main__":
    main()
