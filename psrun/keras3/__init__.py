"""Models of Keras 3 on parameter servers: layers, the model as one of tf-keras, its losses and metrics.

psrun asks through `psrun.program.adapters.Adapter` and `psrun.program.adapters.AdaptedModel`. Without this folder only
models of Keras 3 stop working.
"""
