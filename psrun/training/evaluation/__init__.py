"""Modes of evaluation. `validation` is part of Model.fit and of the trainer `fit`."""
