"""How long tests wait for other processes."""

# For what a process does that imports TensorFlow: only a hang takes as long. It is no measure of speed: on two cores
# with four more processes that compute, such a command takes several times as long as alone.
BOUND_S = 600.0
