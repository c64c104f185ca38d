"""How many steps a closure is to have where that is chosen by what a step takes."""

from __future__ import annotations

from psrun.config import choices

# How long a closure is to take where the number of its steps is chosen. Its dispatch costs a millisecond or two of the
# coordinator's one thread (docs/explanation/scale.md), which is to be busy half of the time at most, however many
# workers there are.
CLOSURE_S = 0.1
_CLOSURE_PER_WORKER_S = 0.0033
_MOST_CHOSEN = 200


def chosen(step_s: float, steps_per_epoch: int, num_workers: int) -> int:
    """How many steps a closure is to have where one takes `step_s` seconds on a worker.

    As many as fill 0.1 s, or more time where more than thirty workers wait for the coordinator's next closure; in tens
    where they are more than ten; a few less where those fill an epoch evenly.
    """
    closure_s = max(CLOSURE_S, _CLOSURE_PER_WORKER_S * num_workers)
    most = min(max(1, round(closure_s / max(step_s, 1e-6))), _MOST_CHOSEN, steps_per_epoch)
    possible = [n for n in range(1, most + 1) if n <= choices.MOST_WRITTEN_OUT or n % choices.MOST_WRITTEN_OUT == 0]
    even = [n for n in possible if steps_per_epoch % n == 0 and 2 * n > possible[-1]]
    return max(even or possible)
