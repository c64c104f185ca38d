"""The names of psrun's own metrics in `model.metrics`; known before NumPy and TensorFlow are imported."""

from __future__ import annotations

# Of lists by user (`psrun.recsys.metrics.ranking`).
OF_ITEMS = ("coverage", "popularity")  # which need all items as candidates
AT_K = ("hit_rate", "recall", "precision", "ndcg", "mrr", "map", *OF_ITEMS)
GROUP_AUC = "gauc"
# Of the probabilities of a binary label (`psrun.metrics.counters`). Keras has another AUC.
COUNTERS = ("auc", "log_loss", "normalized_entropy", "calibration")
EXAMPLES = (*COUNTERS, GROUP_AUC, *(f"{base}@10" for base in AT_K))


def parse(name: str) -> tuple[str, int | None] | None:
    """The metric of lists that a name such as 'ndcg@10' or 'gauc' means, and its k; None if it means none.

    Raises:
      ValueError: k is missing, or is no positive integer.
    """
    if name == GROUP_AUC:
        return name, None
    base, mark, k = name.partition("@")
    if base not in AT_K:
        return None
    if not mark:
        raise ValueError(f"needs the length of the list, such as {base}@10")
    if not k.isdecimal() or int(k) < 1:
        raise ValueError(f"has the length {k!r}, must be an integer of 1 or more, such as {base}@10")
    return base, int(k)
