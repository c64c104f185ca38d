"""Checkpoints: their files (`storage`), saving and restoring (`checkpoints`), and what is made of them."""
