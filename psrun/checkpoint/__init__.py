"""Checkpoints: their content (`manifest`), their folder (`store`), saving and restoring (`checkpoints`)."""
