"""What a person sees of runs and sweeps from outside, while they go on and afterwards; nothing is written."""
