"""psrun's embedding layers for Keras 3 models."""

from psrun.keras3.layers import Embedding, EmbeddingCollection, Table

__all__ = ["Embedding", "EmbeddingCollection", "Table"]
