"""Steps that are trained again, from an older checkpoint, are drawn once: with the values of the last training."""

from __future__ import annotations

import time

import pytest

from psrun.results.events import Event
from psrun.runs.report.runs import valid

# Epochs end after 5 steps; a checkpoint of step 10 is restored after step 20, and one of step 12 after step 15.
STORY = [
    *[("epoch", step) for step in (5, 10, 15, 20)],
    ("restored", 10),
    *[("epoch", 15), ("restored", 12)],
    *[("epoch", 15), ("evaluation", 15), ("epoch", 20)],
]


def happened() -> list[Event]:
    return [Event(kind, step, 0.0, {"metrics": {"loss": float(index)}}) for index, (kind, step) in enumerate(STORY)]


def test_a_report_draws_no_results_of_steps_that_were_trained_again():
    events = [Event("evaluation", 20, 0.0, {"path": "ckpt-20", "metrics": {}}), *happened()]
    last = len(STORY)
    kept = [events.index(each) for each in valid(events) if each.kind != "restored"]
    assert kept == [0, 1, 2, last - 2, last - 1, last]


@pytest.mark.tensorflow
def test_tensorboard_forgets_steps_that_are_trained_again(tmp_path):
    """Three processes of the training write the same folder; the evaluator's process goes on through one restart."""
    import tensorflow as tf

    # TensorBoard's own; `event_accumulator`, which it no longer uses, forgets no values of TensorFlow 2.
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    from psrun.results.run_folder import RunFolder
    from psrun.results.tensorboard import TensorBoardSink
    from psrun.results.tracking import TrackedRun

    def drawn(folder):
        events = EventAccumulator(str(run.folder.tensorboard / folder)).Reload().Tensors("loss")
        return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events]

    run = TrackedRun("tensorboard", RunFolder(tmp_path), None, None)
    sink, evaluator = TensorBoardSink(None, run), TensorBoardSink(None, run)
    for event in happened():
        if event.kind == "restored":
            sink.close()
            sink = TensorBoardSink(None, run)
        if event.kind != "evaluation":
            sink.event(event)
        if event.kind == "epoch":
            evaluator.event(Event("evaluation", event.step, 0.0, event.data))
    sink.close()
    evaluator.close()
    last = len(STORY) - 1
    assert drawn("train") == drawn("evaluation") == [(5, 0.0), (10, 1.0), (15, float(last - 2)), (20, float(last))]


@pytest.mark.tensorflow
def test_tensorboard_reads_the_file_of_a_restored_training_last(tmp_path):
    """Names of one second are compared as text: here the earlier training's name is behind every name of this host."""
    from psrun.results.run_folder import RunFolder
    from psrun.results.tensorboard import TensorBoardSink
    from psrun.results.tracking import TrackedRun

    run = TrackedRun("tensorboard", RunFolder(tmp_path), None, None)
    folder = run.folder.tensorboard / "train"
    folder.mkdir(parents=True)
    earlier = folder / f"events.out.tfevents.{int(time.time()):010}.zzzz.9.9.v2"
    earlier.touch()
    sink = TensorBoardSink(None, run)
    sink.event(Event("epoch", 5, 0.0, {"metrics": {"loss": 1.0}}))
    sink.close()
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2
    assert names[0] == earlier.name
