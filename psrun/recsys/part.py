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

PART = Part(
    moved={
        "psrun.data.criteo": "psrun.recsys.data.criteo",
        "psrun.data.flights": "psrun.recsys.data.flights",
        "psrun.metrics.ranking": "psrun.recsys.metrics.ranking",
        **{f"psrun.models.{name}": f"psrun.recsys.models.{name}" for name in _MODELS},
    },
)
