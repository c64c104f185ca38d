"""Evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from psrun.config.choices.base import Choice
from psrun.config.schema import at_least, one_of


class EvaluationChoice(Choice):
    """The interface of every evaluation; the defaults are those of a run without one.

    The implementation is called with the program, and returns a `psrun.training.evaluation.modes.Evaluator`; None where
    Keras' fit evaluates.

    Attributes:
      runs_on: 'fit': within Keras' fit; 'coordinator': between epochs, led by the chief; 'evaluator': beside the
        training, by a separate task; None where nothing is evaluated.
      sets_worker_aside: whether that task is the last worker.
      needs_parameter_servers: whether it has a meaning only with parameter servers.
      is_exact: whether each example counts once.
      batch_size: examples per evaluation batch; None for the training batch size.
      user: the feature with the users, for metrics of lists; None: there are none.
      by: features by whose values metrics are also reported.
      candidates: what relevant items are ranked among: None: the other evaluation examples of the user; all: all items;
        a number: that many negatives, drawn for each.
      sampling: how these are drawn.
      item: the feature with the items, for candidates.
      item_features: those that depend on the item, of a model without towers; empty: `item` alone.
    """

    runs_on: ClassVar[Literal["fit", "coordinator", "evaluator"] | None] = None
    sets_worker_aside: ClassVar[bool] = False
    needs_parameter_servers: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    kind: str
    batch_size: int | None = None
    user: str | None = None
    by: Sequence[str] = ()
    candidates: int | str | None = None
    sampling: str = "uniform"
    item: str | None = None
    item_features: Sequence[str] = ()

    def is_due(self, epoch: int) -> bool:
        """Whether it runs between `epoch` and the next one."""
        return False

    @property
    def set_for_gathering(self) -> list[str]:
        """The keys for examples that are gathered (`psrun.metrics.gathered`), as far as they are set."""
        names = []
        for name in ("user", "by", "candidates", "sampling", "item", "item_features"):
            unset = (getattr(EvaluationChoice, name), list[str]())
            if getattr(self, name) not in unset:
                names.append(name)
        return names

    def refusal_to_group(self, what: str) -> str | None:
        """The problem with `what`, which needs all examples of a list or a segment once; None if there is none."""
        if self.runs_on == "fit":
            return f"is validation, Keras' own, which cannot group examples as {what} needs; choose exact"
        if not self.is_exact:
            found = f"is {self.kind}, which counts some examples twice and others not at all"
            return f"{found}, but {what} needs each example once; choose exact"
        return None


@dataclass(frozen=True)
class NoEvaluation(EvaluationChoice):
    kind: str


@dataclass(frozen=True)
class Evaluated(EvaluationChoice):
    kind: str
    batch_size: int | None = at_least(1)
    user: str | None = field(default=None, kw_only=True)
    by: list[str] = field(default_factory=list, kw_only=True)
    candidates: int | str | None = field(default=None, kw_only=True, metadata={"at_least": 1, "or_else": "all"})
    sampling: str = field(default="uniform", kw_only=True, metadata={"choices": ("uniform", "popularity")})
    item: str | None = field(default=None, kw_only=True)
    item_features: list[str] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class Validation(Evaluated):
    implementation = "psrun.training.evaluation.mergeable:check"
    runs_on = "fit"
    every: int = at_least(1)


@dataclass(frozen=True)
class BetweenEpochs(Evaluated):
    """`every`: after how many epochs."""

    runs_on = "coordinator"
    every: int = at_least(1)

    def is_due(self, epoch: int) -> bool:
        return epoch % self.every == 0


@dataclass(frozen=True)
class Direct(BetweenEpochs):
    implementation = "psrun.training.evaluation.direct:DirectEvaluation"


@dataclass(frozen=True)
class Distributed(BetweenEpochs):
    implementation = "psrun.training.evaluation.distributed:DistributedEvaluation"
    needs_parameter_servers = True
    is_exact = False


@dataclass(frozen=True)
class Exact(BetweenEpochs):
    """`num_shards`: the number of closures; None for a few per worker."""

    implementation = "psrun.training.evaluation.exact:make"
    num_shards: int | None = at_least(1)


@dataclass(frozen=True)
class Sidecar(Evaluated):
    """Evaluation by the evaluator task.

    Attributes:
      every: whether to evaluate each checkpoint, or only the newest.
      wait_s: limit for the first checkpoint, for a missing chief, and for the last evaluation.
      max_evaluations: evaluations before the evaluator exits; None for no limit.
      checkpoint_dir: folder of checkpoints that psrun does not write; None for those of the run.
      callbacks: Keras callbacks of each evaluation; a mapping with a _target_ each.
    """

    runs_on = "evaluator"
    every: str = one_of("each", "latest")
    wait_s: float = at_least(1)
    max_evaluations: int | None = at_least(1)
    checkpoint_dir: str | None = None
    callbacks: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class SidecarThread(Sidecar):
    """Evaluation by the last worker, which does not join the cluster."""

    sets_worker_aside = True


class _Checkpoints:
    """The interface of every choice of checkpoints.

    Attributes:
      are_taken: whether psrun takes any; Keras callbacks may, in any case.
      best_metric: by which checkpoints are compared; None where they are not.
    """

    are_taken: ClassVar[bool] = False
    kind: str
    best_metric: str | None = None
    best_mode: str = "max"
    every_epochs: int | None = None
    every_s: float | None = None


@dataclass(frozen=True)
class NoCheckpoints(_Checkpoints):
    kind: str


@dataclass(frozen=True)
class EpochCheckpoints(_Checkpoints):
    """When to save checkpoints (always at the end), and which to keep: the newest, and the best by a metric."""

    are_taken = True
    kind: str
    best_metric: str | None = field()
    best_mode: str = one_of("max", "min")
    every_epochs: int | None = at_least(1)
    every_steps: int | None = at_least(1)
    every_s: float | None = at_least(0)
    max_to_keep: int = at_least(1)


Checkpoints = NoCheckpoints | EpochCheckpoints


# By name, as `kind` in conf/.
EVALUATIONS: dict[str, type] = {
    "none": NoEvaluation,
    "validation": Validation,
    "direct": Direct,
    "distributed": Distributed,
    "exact": Exact,
    "sidecar": Sidecar,
    "sidecar_thread": SidecarThread,
}
CHECKPOINTS: dict[str, type] = {"none": NoCheckpoints, "epoch": EpochCheckpoints}
