"""The names of psrun's own metrics in `model.metrics`; known before NumPy and TensorFlow are imported."""

from __future__ import annotations

# Of the probabilities of a binary label (`psrun.metrics.counters`). Keras has another AUC.
COUNTERS = ("auc", "log_loss", "normalized_entropy", "calibration")
