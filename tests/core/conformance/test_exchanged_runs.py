"""Runs whose checkpoint leaves in files of another format and comes back go on as if it had stayed."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
from embeddings import Basket
from safetensors import numpy as safetensors
from support import STEPS, TABLED, variables

from psrun.checkpoint import commands, exchange
from psrun.checkpoint.storage import Store
from psrun.errors import ConfigError, ExitCode
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.inprocess

DATA = [each for each in TABLED if not each.startswith("data._target_")]
BASKET = ("model=embedding", *DATA, "data._target_=embeddings.Basket", "model._target_=embeddings.basket",
          "optimizer.learning_rate=0.001")  # fmt: skip
TWO_SHARDS = ("cluster=inprocess", "cluster.num_ps=2", "partitioner=fixed_shards", "partitioner.num_shards=2")
STACKED, ALONE = "+model.stack=true", "+model.stack=false"
LAYOUTS = {
    "stacked, then in one process": ((*TWO_SHARDS, STACKED), ("cluster=none", STACKED)),
    "in one process, then stacked": (("cluster=none", ALONE), (*TWO_SHARDS, STACKED)),
    "one by one": ((*TWO_SHARDS, ALONE), ("cluster=inprocess", "partitioner=none", ALONE)),
}
OPTIMIZERS = ("rowwise_adagrad", "lazy_adam", "adagrad", "sparse_sgd", "sgd", "sparse_adagrad", "adam", "ftrl",
              "adam table_optimizer=rowwise_adagrad table_optimizer.learning_rate=0.001")  # fmt: skip
CASES = [
    ("stacked, then in one process", "rowwise_adagrad", "safetensors"),
    ("in one process, then stacked", "lazy_adam", "npz"),
]
FORMS = itertools.cycle(exchange._WRITERS)
for layout, optimizer in itertools.product(LAYOUTS, OPTIMIZERS):
    case = (layout, optimizer, next(FORMS))
    if (layout, optimizer) not in [each[:2] for each in CASES[:2]]:
        CASES.append(pytest.param(*case, marks=pytest.mark.thorough))


def exchanged(run: RunFolder, form: str) -> RunFolder:
    """The run after an export and an import."""
    out, back = run.path.with_name("out"), run.path.with_name("back")
    assert commands.main(["export", str(run.path), "--to", str(out), "--format", form]) == ExitCode.DONE
    with pytest.raises(ConfigError, match="is a part of an export; to make a run of it: psrun checkpoint import"):
        RunFolder.resume(out / "run")
    assert commands.main(["import", str(out), "--to", str(back)]) == ExitCode.DONE
    assert commands.main(["diff", str(run.path), str(back)]) == ExitCode.DONE
    return RunFolder.resume(back)


@pytest.mark.parametrize(("layout", "optimizer", "form"), CASES)
def test_a_run_goes_on_in_another_layout_as_if_nothing_had_happened(train, layout, optimizer, form):
    first, then = LAYOUTS[layout]
    pieces = (*BASKET, *f"optimizer={optimizer}".split(), "trainer.epochs=1")
    _, run = train(*pieces, *first, num_workers=1)
    back = exchanged(run, form)
    stayed = RunFolder(shutil.copytree(run.path, run.path.with_name("stayed")))
    for folder in (back, stayed):
        result, _ = train(*pieces, "trainer.epochs=2", *then, num_workers=1, into=RunFolder.resume(folder.path))
        assert result["steps"]["applied"] == 2 * STEPS
    values = variables(back)
    for name, value in variables(stayed).items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize(
    "layout", [name if "stacked, then" in name else pytest.param(name, marks=pytest.mark.thorough) for name in LAYOUTS]
)
def test_the_row_of_an_id_in_a_file_is_the_row_that_the_model_looks_up(train, layout):
    """Rows begin with ones, and change where batches use them; not every item occurs."""
    _, run = train(*BASKET, "optimizer=sparse_sgd", "trainer.epochs=1", *LAYOUTS[layout][0], num_workers=1)
    out = run.path.with_name("out")
    store = Store(run.checkpoints)
    about = exchange.export(store, store.steps()[0], out, "safetensors")
    features, _ = Basket()._train
    for table, (size, _) in Basket.SIZES.items():
        described = about["tables"][table]
        assert (described["num_ids"], described["row_order"], described["features"]) == (size, "ids", {table: {}})
        rows = safetensors.load_file(out / described["file"])["rows"]
        changed = np.flatnonzero((rows != 1).any(axis=1))
        assert changed.tolist() == sorted({*features[table].ravel().tolist()})
