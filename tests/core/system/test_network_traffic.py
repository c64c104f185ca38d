"""What travels between a worker and parameter servers in a step, by the graph that TensorFlow makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Besides values of parameters and rows, what counts and waits at the end of a closure.
FROM_SERVERS = {"ResourceGather", "ReadVariableOp", "ConcatV2", "Reshape", "AssignAddVariableOp", "NoOp"}


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "locking"), [("embedding", "false"), ("embedding", "true")])
def test_nothing_of_an_update_comes_back_to_the_worker(psrun, tmp_path, model, locking):
    """Neither rows, sums nor checks; only that it is done. Each of them would be a message for every shard and step."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    run = psrun(
        "cluster=inprocess", "cluster.num_workers=1", "cluster.num_ps=2", "partitioner=fixed_shards", f"model={model}",
        f"optimizer.locking={locking}", "optimizer=sparse_adagrad", "trainer=custom_loop", "trainer.epochs=1",
        "trainer.steps_per_epoch=4", "trainer.steps_per_execution=2", "evaluation=none",
        TF_DUMP_GRAPH_PREFIX=str(dumps), TF_DUMP_GRAPH_NAME_FILTER="*", TF_DUMP_GRAPH_GROUPS="main",
    )  # fmt: skip
    assert run.code == 0, run.stderr
    closures = [path for path in dumps.glob("*steps*.main.before_partition.pbtxt") if "_partition_" not in path.name]
    crossing = _crossing(max(closures, key=lambda path: path.stat().st_size))
    assert {"ResourceGather"} <= {op for op, _ in crossing} <= FROM_SERVERS, crossing


def _crossing(dump: Path) -> list[tuple[str, str]]:
    """What comes from parameter servers to workers: the kind of operation, and the input that it is.

    A control input, `^name`, brings no value: it says that something is done, as a `NoOp` does.
    """
    from google.protobuf import text_format
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef()
    text_format.Parse(dump.read_text(encoding="utf-8"), graph)
    nodes = {node.name: node for node in graph.node}
    crossings = []
    for node in graph.node:
        for source in node.input:
            giver = nodes[re.sub(r"^\^|:\d+$", "", source)]
            if "/job:ps" in giver.device and "/job:worker" in node.device:
                crossings.append(("NoOp" if source.startswith("^") else giver.op, source))
    return crossings
