"""Who starts the tasks of a run and restarts them: one machine, Slurm, Kubernetes, Ray. No TensorFlow."""
