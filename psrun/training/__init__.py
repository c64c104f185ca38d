"""The two trainers. Each module offers `trainer(run)`: what can be refused early is, and out comes `train(program, session)`."""
