"""Models of Keras 3 on parameter servers: layers, the model as one of tf-keras, its losses and metrics.

The rest of psrun asks through `psrun.program.keras3_models` and `psrun.layers.adapter.AdaptedModel`. Without this
folder only models of Keras 3 stop working.
"""
