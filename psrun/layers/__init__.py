"""Layers for sharded tables; they work in any tf-keras model, with and without parameter servers."""

from psrun.layers.collection import EmbeddingCollection
from psrun.layers.embedding import Embedding
from psrun.layers.lookup import Table

__all__ = ["Embedding", "EmbeddingCollection", "Table"]
