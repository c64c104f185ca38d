"""What a plain logistic regression makes of the flights: the figure that `psrun experiment=flights` is compared with.

    python benchmarks/flights_logistic.py

Same rows, features, label and split in time as `psrun.recsys.data.flights`. The strength of the regularisation is
chosen on the end of the training part; the test part is looked at once.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

from rich.console import Console
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from psrun.recsys.data import flights

if TYPE_CHECKING:
    import pandas as pd

EVAL_FRACTION = 0.2  # of all rows; conf/data/flights.yaml has the same
VALIDATION_FRACTION = 0.2  # of the training part
CS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # inverse regularisation strengths
MAX_ITERATIONS = 2000


def fitted(part: pd.DataFrame, c: float) -> Pipeline:
    """The model trained on `part`, to convergence.

    Args:
      c: inverse strength of the L2 regularisation, as scikit-learn has it.

    Raises:
      ConvergenceWarning: it did not converge within MAX_ITERATIONS.
    """
    columns = [*flights.STRINGS, *flights.INTEGERS]
    features = ColumnTransformer(
        [("values", OneHotEncoder(handle_unknown="ignore"), columns), ("distance", StandardScaler(), ["distance"])],
        sparse_threshold=1.0,
    )
    model = make_pipeline(features, LogisticRegression(C=c, max_iter=MAX_ITERATIONS))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # a figure to compare with must not be a half-trained one
        return model.fit(part, flights.late(part))


def auc(model: Pipeline, part: pd.DataFrame) -> float:
    """Area under the ROC curve of `model` on `part`."""
    return float(roc_auc_score(flights.late(part), model.decision_function(part)))


def choose_c(train: pd.DataFrame, console: Console) -> float:
    """The best of CS on the last part of `train`, trained on what is before it."""
    earlier, later = flights.split(train, VALIDATION_FRACTION)
    auc_by_c = {}
    for c in CS:
        began_s = time.monotonic()
        model = fitted(earlier, c)
        auc_by_c[c] = auc(model, later)
        seconds, iterations = time.monotonic() - began_s, int(model[-1].n_iter_[0])
        console.print(f"C {c:<6}  validation ROC AUC {auc_by_c[c]:.4f}  {iterations} iterations, {seconds:.1f} s")
    return max(auc_by_c, key=auc_by_c.__getitem__)


def main() -> None:
    console = Console(highlight=False)
    labeled = flights.load()[0]
    train, test = flights.split(labeled, EVAL_FRACTION)
    console.print(f"{len(labeled):,} rows: {len(train):,} to train on, the last {len(test):,} to test on")
    began_s = time.monotonic()
    c = choose_c(train, console)
    chosen_s = time.monotonic() - began_s
    model = fitted(train, c)
    fit_s = time.monotonic() - began_s - chosen_s
    console.print(f"chosen C {c} in {chosen_s:.1f} s; trained on all of the training part in {fit_s:.1f} s")
    console.print(f"{len(model[-1].coef_[0]):,} weights, {int(model[-1].n_iter_[0])} iterations")
    console.print(f"test ROC AUC {auc(model, test):.4f}  (training part {auc(model, train):.4f})")


if __name__ == "__main__":
    main()
