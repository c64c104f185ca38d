"""tf-keras optimizers whose step on an embedding table costs what the batch touches, however many rows there are."""
