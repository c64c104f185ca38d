"""The trainers: each module offers `trainer(run)`, which refuses early what it can, to a function that trains."""
