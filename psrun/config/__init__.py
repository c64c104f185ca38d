"""From arguments to a typed `RunConfig`, or to one error that lists all problems. No TensorFlow."""
