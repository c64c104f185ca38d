"""Sweeps: what is recorded of them, their jobs as processes, and what a person sees; no TensorFlow, no Hydra."""
