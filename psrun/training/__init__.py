"""The two trainers. Each module offers `trainer(run)`, which refuses what it can early, to `train(program, session)`."""
