"""What six libraries and psrun mean by the names of ranking metrics, on three users: docs/guides/metrics.md.

    pip install scikit-learn==1.9.1 torchmetrics==1.9.0 keras-rs==0.4.0 ranx==0.3.21 pytrec-eval-terrier==0.5.11
    pip install rectools==0.19.0        # in an environment of its own: it needs NumPy 1
    python benchmarks/ranking_definitions.py

A library that is not installed is left out. The users: A has four items with two equal scores and grades of relevance,
B fewer items than k, C no relevant item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata

import numpy as np

K = 3
SCORES = {"A": [0.9, 0.8, 0.8, 0.3], "B": [0.5, 0.4], "C": [0.7, 0.6, 0.5]}
LABELS = {"A": [0, 1, 0, 2], "B": [0, 1], "C": [0, 0, 0]}
Values = dict[str, dict[str, float | None]]  # by metric and user


def psrun() -> Values:
    from psrun.recsys.metrics import ranking

    names = ("ndcg", "recall", "precision", "mrr", "map", "hit_rate")

    def value(name: str, user: str) -> float | None:
        examples = ranking.Examples(np.zeros(len(LABELS[user])), np.array(LABELS[user]), np.array(SCORES[user]))
        return ranking.mean(*ranking.by_name(f"{name}@{K}").values(examples))

    return {name: {user: value(name, user) for user in SCORES} for name in names}


def scikit_learn() -> Values:
    from sklearn.metrics import ndcg_score

    return {"ndcg": {user: float(ndcg_score([LABELS[user]], [SCORES[user]], k=K)) for user in SCORES}}


def torchmetrics() -> Values:
    import torch
    from torchmetrics.functional import retrieval

    functions = {
        "ndcg": retrieval.retrieval_normalized_dcg,
        "recall": retrieval.retrieval_recall,
        "precision": retrieval.retrieval_precision,
        "mrr": retrieval.retrieval_reciprocal_rank,
        "map": retrieval.retrieval_average_precision,
        "hit_rate": retrieval.retrieval_hit_rate,
    }

    def value(name: str, user: str) -> float:
        label = torch.tensor(LABELS[user])
        target = label if name == "ndcg" else label > 0
        return float(functions[name](torch.tensor(SCORES[user]), target, top_k=K))

    return {name: {user: value(name, user) for user in SCORES} for name in functions}


def keras_rs() -> Values:
    import keras
    import keras_rs

    kinds = {
        "ndcg": keras_rs.metrics.NDCG,
        "recall": keras_rs.metrics.RecallAtK,
        "precision": keras_rs.metrics.PrecisionAtK,
        "mrr": keras_rs.metrics.MeanReciprocalRank,
        "map": keras_rs.metrics.MeanAveragePrecision,
    }

    def value(name: str, user: str) -> float:
        metric = kinds[name](k=K)
        metric.update_state(np.array([LABELS[user]], np.float32), np.array([SCORES[user]], np.float32))
        return float(keras.ops.convert_to_numpy(metric.result()))

    return {name: {user: value(name, user) for user in SCORES} for name in kinds}


def ranx() -> Values:
    from ranx import Qrels, Run, evaluate

    names = {
        "ndcg": f"ndcg@{K}",
        "recall": f"recall@{K}",
        "precision": f"precision@{K}",
        "mrr": f"mrr@{K}",
        "map": f"map@{K}",
        "hit_rate": f"hit_rate@{K}",
    }
    run = Run({user: {f"i{item}": score for item, score in enumerate(scores)} for user, scores in SCORES.items()})
    qrels = Qrels({user: {f"i{item}": grade for item, grade in enumerate(label)} for user, label in LABELS.items()})
    found = evaluate(qrels, run, [*names.values()], return_mean=False)
    return {name: dict(zip(SCORES, map(float, found[key]))) for name, key in names.items()}


def pytrec_eval_terrier() -> Values:
    import pytrec_eval

    names = {
        "ndcg": f"ndcg_cut_{K}",
        "recall": f"recall_{K}",
        "precision": f"P_{K}",
        "mrr": "recip_rank",
        "map": f"map_cut_{K}",
        "hit_rate": f"success_{K}",
    }
    qrels = {user: {f"i{item}": grade for item, grade in enumerate(label)} for user, label in LABELS.items()}
    run = {user: {f"i{item}": score for item, score in enumerate(scores)} for user, scores in SCORES.items()}
    found = pytrec_eval.RelevanceEvaluator(qrels, {*names.values()}).evaluate(run)
    return {name: {user: found[user][key] if user in found else None for user in SCORES} for name, key in names.items()}


def rectools() -> Values:
    import pandas as pd
    from rectools import metrics

    kinds = {
        "ndcg": metrics.NDCG(k=K),
        "recall": metrics.Recall(k=K),
        "precision": metrics.Precision(k=K),
        "mrr": metrics.MRR(k=K),
        "map": metrics.MAP(k=K),
        "hit_rate": metrics.HitRate(k=K),
    }
    rows = [
        (user, item, rank)
        for user, scores in SCORES.items()
        for rank, item in enumerate(np.argsort(-np.array(scores), kind="stable"), 1)
    ]
    recommended = pd.DataFrame(rows, columns=["user_id", "item_id", "rank"])
    known = [(user, item) for user, label in LABELS.items() for item, grade in enumerate(label) if grade]
    interactions = pd.DataFrame(known, columns=["user_id", "item_id"])
    found = {name: metric.calc_per_user(recommended, interactions) for name, metric in kinds.items()}
    return {name: {user: values.get(user) for user in SCORES} for name, values in found.items()}


LIBRARIES: dict[str, Callable[[], Values]] = {
    "psrun": psrun,
    "scikit-learn": scikit_learn,
    "torchmetrics": torchmetrics,
    "keras-rs": keras_rs,
    "ranx": ranx,
    "pytrec-eval-terrier": pytrec_eval_terrier,
    "rectools": rectools,
}


def rows() -> Iterator[str]:
    """A line for each library: its values for users A, B and C by metric."""
    for name, compute in LIBRARIES.items():
        try:
            version = "" if name == "psrun" else metadata.version(name)
            values = compute()
        except (ImportError, metadata.PackageNotFoundError):
            yield f"{name}: not installed"
            continue
        cells = [
            f"{metric} " + " ".join("-" if value is None else f"{value:.3f}" for value in by_user.values())
            for metric, by_user in values.items()
        ]
        yield f"{name} {version}: " + " | ".join(cells)


if __name__ == "__main__":
    for row in rows():
        print(row)  # noqa: T201
