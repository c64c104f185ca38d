"""Trainings on virtual clusters: equal to real ones where they have to be, each example once, and right by hand."""

from __future__ import annotations

import counting
import delayed
import numpy as np
import pytest
from support import TABLED, variables

from psrun.errors import ConfigError
from psrun.results.run_folder import RunFolder
from psrun.virtual.simulation import Applied, AsynchronousCluster, Costs, Read
from psrun.virtual.times import StepSeconds

pytestmark = pytest.mark.inprocess

RUN = [
    "model=embedding", *TABLED, "model._target_=embeddings.model", "+model.embeddings_initializer=ones",
    "data.visitation=once", "trainer.steps_per_epoch=25", "trainer.epochs=2", "trainer=custom_loop",
]  # fmt: skip
VIRTUAL = "cluster=virtual", "cluster.step_s=0.02"


def exactly_equal(first, second):
    held = variables(second)
    for name, value in variables(first).items():
        np.testing.assert_array_equal(held[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("optimizer", "visitation"),
    [("sparse_adagrad", "once"), pytest.param("lazy_adam", "every_worker", marks=pytest.mark.thorough)],
)
def test_one_virtual_worker_is_one_process_bit_by_bit(train, optimizer, visitation):
    run = [*RUN, f"optimizer={optimizer}", f"data.visitation={visitation}"]
    virtual, folder = train(*run, *VIRTUAL, "cluster.num_workers=1")
    alone, here = train(*run, "cluster=none")
    exactly_equal(folder, here)
    assert virtual["metrics"] == alone["metrics"]
    assert virtual["staleness"]["histogram"] == [[0, 50]]


@pytest.mark.parametrize("options", [(), pytest.param(("optimizer=adagrad",), marks=pytest.mark.thorough)])
def test_synchronous_virtual_workers_are_synchronous_workers_bit_by_bit(train, options):
    run = [*RUN, "consistency=sync", "trainer.steps_per_execution=1", "optimizer=sparse_adagrad", *options]
    _, here = train(*run, "cluster=inprocess")
    virtual, folder = train(*run, *VIRTUAL, "cluster.num_workers=2")
    exactly_equal(folder, here)
    assert virtual["consistency"]["gradients_applied"] == 100


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ((), {}),
        pytest.param(("optimizer.staleness_aware=true",), {"late_rate": delayed.divided_rate},
                     marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_late_gradients_are_gradient_descent_by_hand(train, options, formula):
    steps = 40
    times = {"step_s": 0.1, "step_deviation": 0.8, "latency_s": 0.0, "closure_s": 0.0, "bytes_per_s": 1e30}
    keys = [f"cluster.{key}={value}" for key, value in times.items()]
    run = ["trainer.epochs=1", f"trainer.steps_per_epoch={steps}", "trainer.steps_per_execution=1", "seed=5"]
    result, folder = train(*delayed.LINEAR, *VIRTUAL, "cluster.num_workers=4", *keys, *run, *options)
    seconds = StepSeconds(0.1, 0.8, seed=5)
    seconds.begin(0)
    cluster = AsynchronousCluster(4, seconds, Costs(read_s=[0, 0], push_s=[0, 0]))
    for _ in range(steps):
        cluster.schedule(1, None)
    cluster.join()
    read = {}
    updates = []
    for action in cluster.actions:
        if isinstance(action, Read):
            read[action.number] = len(read), len(updates)
        elif isinstance(action, Applied):
            updates.append(read[action.numbers[0]])
    assert len({number - version for number, (_, version) in enumerate(updates)}) > 3
    weights = {name: value for name, value in variables(folder).items() if np.size(value) > 1}
    delayed.check(weights, *delayed.by_hand(updates, 0.1, **formula))
    assert result["virtual"]["time_s"] == pytest.approx(cluster.now_s)
    assert result["virtual"]["steps_per_s"] == pytest.approx(steps / cluster.now_s)


MODES = {
    "async": (["trainer.steps_per_execution=3"], 1, None),
    "ssp": (["consistency=ssp", "consistency.staleness=1"], 1, None),
    "sync": (["consistency=sync"], 8, None),
    "backup workers": (["consistency=sync", "consistency.backup_workers=4"], 4, None),
    "gba": (["consistency=gba", "consistency.gradients=4", "consistency.tolerance=1"], 4, None),
    "k_async": (["consistency=k_async", "consistency.gradients=2"], 2, None),
    "hybrid": (["consistency=hybrid", "consistency.tolerance=1"], 8, 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "more"),
    [*((mode, ()) for mode in MODES), ("hybrid", ("table_optimizer=sparse_sgd", "table_optimizer.learning_rate=1"))],
)
def test_each_example_is_applied_once(train, mode, more):
    options, gradients, of_rows = MODES[mode]
    run = [*counting.arguments(examples=256, batch=8), *more]
    times = ["cluster.num_workers=8", "cluster.step_deviation=1.0", "cluster.slow_workers={2: 0.1}",
             "checkpoint.every_steps=3", "trainer.steps_per_execution=1"]  # fmt: skip
    result, folder = train(*run, *VIRTUAL, *times, *options, "trainer.epochs=3")
    assert result["steps"]["applied"] == 3 * 32 // gradients
    assert counting.wrong(folder.checkpoints, epochs=3, gradients=gradients, of_rows=of_rows) == []


@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in MODES if mode != "async")]
)
def test_each_example_is_applied_once_though_workers_are_lost(train, mode):
    options, gradients, of_rows = MODES[mode]
    run = counting.arguments(examples=256, batch=8)
    times = ["cluster.num_workers=8", "cluster.step_deviation=1.0", "cluster.worker_mtbf_s=0.2",
             "cluster.worker_recovery_s=0.1", "trainer.steps_per_execution=1"]  # fmt: skip
    result, folder = train(*run, *VIRTUAL, *times, *options, "trainer.epochs=3")
    assert result["consistency"]["gradients_lost"] > 0
    assert counting.wrong(folder.checkpoints, epochs=3, gradients=gradients, of_rows=of_rows) == []


def test_lost_parameter_servers_cost_time_and_no_update(train):
    run = [*RUN, *VIRTUAL, "cluster.num_workers=4", "checkpoint.every_steps=5"]
    without, here = train(*run)
    result, folder = train(*run, "cluster.ps_mtbf_s=0.1", "cluster.ps_recovery_s=3.0")
    exactly_equal(folder, here)
    consistency = result["consistency"]
    assert consistency["ps_lost"] > 0
    assert consistency["ps_lost_s"] > 3.0 * consistency["ps_lost"]
    more_s = result["virtual"]["time_s"] - without["virtual"]["time_s"]
    assert more_s == pytest.approx(consistency["ps_lost_s"], abs=1e-3)


def test_the_same_seed_gives_the_same_training_and_says_that_it_is_virtual(train):
    run = [*RUN, *VIRTUAL, "cluster.num_workers=16", "cluster.step_deviation=0.5", "trainer.epochs=1"]
    first, here = train(*run)
    again, there = train(*run)
    exactly_equal(here, there)
    assert again["virtual"] == first["virtual"]
    assert again["staleness"] == first["staleness"]
    assert first["virtual"]["examples_per_s"] > 0
    assert first["examples_per_s"] is None
    other, _ = train(*run, "seed=9")
    assert other["virtual"] != first["virtual"]
    real = [piece for piece in run if not piece.startswith("cluster.")]
    resumed, _ = train(*real, "cluster=none", "trainer.epochs=2", into=RunFolder.resume(here.path, completed=True))
    assert resumed["virtual"] is None
    assert resumed["examples_per_s"] > 0


def test_virtual_time_goes_on_after_a_resume(train):
    run = [*RUN, *VIRTUAL, "cluster.num_workers=4"]
    whole, here = train(*run)
    half, folder = train(*run, "trainer.epochs=1")
    resumed, there = train(*run, into=RunFolder.resume(folder.path, completed=True))
    exactly_equal(here, there)
    assert half["virtual"]["time_s"] < resumed["virtual"]["time_s"]
    assert resumed["virtual"]["time_s"] == pytest.approx(whole["virtual"]["time_s"])


HYBRID = ["consistency=hybrid", "trainer.steps_per_execution=1"]
REFUSED = {
    "a model without tables": ([*HYBRID, "model=dense"], "requires a model that looks up rows"),
    "the norm of all gradients": (
        [*HYBRID, "optimizer=sgd", "+optimizer.global_clipnorm=1.0"], "optimizer.global_clipnorm"
    ),
    "more workers than examples": (["cluster.num_workers=100000"], "more than the .* training examples"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_virtual_workers_do_not_support_is_named(train, case):
    pieces, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        train(*pieces, *VIRTUAL, "trainer=custom_loop", "evaluation=none")
