"""DLRM of psrun trains on in PyTorch and back, by the example of the guide, as if it had never left."""

from __future__ import annotations

import shutil

import baskets
import numpy as np
import pytest
from outcomes import check_equal, events
from support import REPOSITORY, variables

from psrun.checkpoint import commands
from psrun.errors import ExitCode
from psrun.results.run_folder import RunFolder

pytestmark = [pytest.mark.inprocess, pytest.mark.thorough]
torch = pytest.importorskip("torch")

STEPS, HERE, THERE, BACK = 10, 1, 10, 2  # the steps of an epoch; epochs in psrun, in PyTorch, and in psrun again
DLRM = (
    "model=dlrm", "model.embedding_dim=4", "model.bottom_units=[8]", "model.top_units=[8,4]", "data=regression",
    "~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features",
    "data._target_=baskets.Baskets", f"data.global_batch_size={baskets.BATCH_SIZE}", "data.visitation=once",
    f"trainer.epochs={HERE + THERE + BACK}", f"trainer.steps_per_epoch={STEPS}", "evaluation=none",
    "checkpoint.max_to_keep=20",
)  # fmt: skip
OPTIMIZERS = {
    # An accumulator that begins at 0 shows where the epsilon is.
    "sparse_adagrad": ("optimizer.learning_rate=0.1", "+optimizer.initial_accumulator_value=0.0"),
    "rowwise_adagrad": ("optimizer.learning_rate=0.1",),
    "lazy_adam": ("optimizer.learning_rate=0.01",),
    "sparse_sgd": ("optimizer.learning_rate=0.5",),
    "adam": ("optimizer.learning_rate=0.01", "table_optimizer=rowwise_adagrad", "table_optimizer.learning_rate=0.1"),
}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "examples"))
    import dlrm_in_pytorch

    return dlrm_in_pytorch


def losses(folder: RunFolder) -> np.ndarray:
    """By epoch."""
    return np.array([event["metrics"]["loss"] for event in events(folder, "epoch")])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_goes_on_in_pytorch_and_back(train, example, optimizer):
    pieces = (*DLRM, f"optimizer={optimizer}", *OPTIMIZERS[optimizer])
    _, whole = train(*pieces, "cluster=inprocess", num_workers=1)
    expected = losses(whole)
    out, otherwise, back = (whole.path.with_name(name) for name in ("out", "otherwise", "back"))
    checkpoint = str(whole.checkpoints / f"ckpt-{HERE * STEPS}")
    assert commands.main(["export", checkpoint, "--to", str(out)]) == ExitCode.DONE
    if optimizer == "sparse_adagrad":
        outside = {"SparseAdagrad": example.adagrad_of_torch}
        training = example.Training(shutil.copytree(out, otherwise), baskets.examples(), outside, outside)
        difference = training.epochs(THERE, STEPS, baskets.BATCH_SIZE) - expected[HERE : HERE + THERE]
        assert np.abs(difference).max() > 1e-3  # what the guide says of an epsilon outside of the root
    there = example.Training(out, baskets.examples()).epochs(THERE, STEPS, baskets.BATCH_SIZE)
    np.testing.assert_allclose(there, expected[HERE : HERE + THERE], atol=1e-5)
    assert commands.main(["import", str(out), "--to", str(back)]) == ExitCode.DONE
    folder = RunFolder.resume(back)
    train(*pieces, "cluster=none", into=folder)
    np.testing.assert_allclose(losses(folder), expected[-BACK:], atol=1e-5)
    check_equal(variables(folder), variables(whole), atol=1e-5)


DESCRIPTION = {"class": "LazyAdam", "constants": {"learning_rate": 0.1}, "formula": "..."}
REFUSED = {
    "formula of SparseFtrl": {"class": "SparseFtrl"},
    "formula of LazyAdam": {"formula": None},  # with options that change it
    "no schedules": {"constants": {"learning_rate": {"class_name": "CosineDecay"}}},
    "does not clip": {"constants": {"learning_rate": 0.1, "clipnorm": 1.0}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_the_example_refuses_what_it_would_do_otherwise(example, message):
    with pytest.raises(SystemExit, match=message):
        example.Optimizer({**DESCRIPTION, **REFUSED[message]}, example.OF_TABLES)


def test_the_example_refuses_other_features_and_standardized_numbers(example, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"data": {"scales": {"age": {"mean": 40.0}}}}')
    about = {"tables": {"user": {"features": {"user": {}}}}}
    features = dict.fromkeys(("numbers", "user", "label"))
    with pytest.raises(SystemExit, match="has standardized age"):
        example.check(tmp_path, about, features)
    del features["user"]
    with pytest.raises(SystemExit, match="the examples have label, numbers; they must have label, numbers, user"):
        example.check(tmp_path, about, features)


@pytest.mark.parametrize(
    ("update", "optimizer", "slots"),
    [("adagrad_of_torch", "Adagrad", {"accumulator": "sum"}),
     ("lazy_adam", "SparseAdam", {"m": "exp_avg", "v": "exp_avg_sq"})],
)  # fmt: skip
def test_two_formulas_of_the_example_are_those_of_torch(example, update, optimizer, slots):
    constants = {"learning_rate": 0.1, "epsilon": 1e-3, "beta_1": 0.9, "beta_2": 0.999}
    gradient = torch.tensor([[1e-3, -2.0], [0.5, 1e-6]])
    values = torch.ones(2, 2)
    own = {name: torch.zeros(2, 2) for name in slots}
    parameter = torch.nn.Parameter(values.clone())
    of_torch = getattr(torch.optim, optimizer)([parameter], lr=0.1, eps=1e-3)
    for step in range(1, 4):
        getattr(example, update)(values, own, gradient * step, constants, step)
        parameter.grad = (gradient * step).to_sparse(1)
        of_torch.step()
    torch.testing.assert_close(values, parameter.data)
    for name, there in slots.items():
        torch.testing.assert_close(own[name], of_torch.state[parameter][there])
