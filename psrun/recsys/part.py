"""What this part offers."""

from psrun.parts import Part

_MODELS = (
    "dcn",
    "deepfm",
    "din",
    "dlrm",
    "in_batch",
    "matrix_factorization",
    "mmoe",
    "sasrec",
    "two_tower",
    "wide_deep",
)

_RANKING = "psrun.recsys.metrics.ranking"

PART = Part(
    metrics={
        "gauc": f"{_RANKING}:GroupAUC",
        "hit_rate@K": f"{_RANKING}:HitRate",
        "recall@K": f"{_RANKING}:Recall",
        "precision@K": f"{_RANKING}:Precision",
        "ndcg@K": f"{_RANKING}:NDCG",
        "mrr@K": f"{_RANKING}:MRR",
        "map@K": f"{_RANKING}:MAP",
        "coverage@K": f"{_RANKING}:Coverage",
        "popularity@K": f"{_RANKING}:Popularity",
    },
    gathering="psrun.recsys.gathering:make",
    outputs={
        "predict.top_k": "psrun.recsys.recommender:run",
        "export.top_k": "psrun.recsys.signature:signatures",
    },
    rules="psrun.recsys.rules:problems",
    compared_by="psrun.recsys.rules:compared_by",
    moved={
        "psrun.data.criteo": "psrun.recsys.data.criteo",
        "psrun.data.flights": "psrun.recsys.data.flights",
        "psrun.metrics.ranking": "psrun.recsys.metrics.ranking",
        **{f"psrun.models.{name}": f"psrun.recsys.models.{name}" for name in _MODELS},
    },
)
