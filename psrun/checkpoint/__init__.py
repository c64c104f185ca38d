"""Checkpoints: what one holds (`manifest`), the folder of them (`store`), and writing and restoring (`checkpoints`)."""
