"""tf-keras optimizers for large tables: a step costs time for the rows of the batch, not for all rows."""
