"""`psrun logs` leaves out what TensorFlow writes in every run, and nothing else."""

from __future__ import annotations

import pytest

from psrun.runs.logs import USUAL, main

USUAL_LINES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795959919.573108    4973 port.cc:153] oneDNN custom operations are on. You may see slightly different \
numerical results due to floating-point round-off errors from different computation orders. To turn them off, set the \
environment variable `TF_ENABLE_ONEDNN_OPTS=0`.
I0000 00:00:1795959919.573702    4973 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be \
used.
I0000 00:00:1795959919.634460    4973 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available \
CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the appropriate \
compiler flags.
E0000 00:00:1795959921.561874    4973 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call \
to cuInit: UNKNOWN ERROR (303)
I0000 00:00:1795959921.567669    4973 grpc_server_lib.cc:467] Started server with target: grpc://localhost:33089
I0000 00:00:1795959921.693793    5081 eager_service_impl.cc:349] Creating sync eager service context with \
rendezvous_id on host vm /job:worker/replica:0/task:1
I0000 00:00:1795959921.693861    5081 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto
device_count {
  key: "GPU"
  value: 0
}
inter_op_parallelism_threads: 16
gpu_options {
  experimental {
  }
}
allow_soft_placement: true
experimental {
  collective_group_leader: "/job:ps/replica:0/task:0"
}

"""
OWN_LINES = """\
loss: 3
reading shop.csv
To enable the following discount: none
learning_rate: 0.1
WARNING:tensorflow:my model is odd
Traceback (most recent call last):
  File "shop.py", line 72
KeyError: 'price'
E0000 00:00:1795959921.561874    4973 cuda_platform.cc:52] failed call to cuInit: INTERNAL: out of memory
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes the log of the chief of a run called A."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "A"
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "completed", "mode": "train"}')

    def write(text: str) -> None:
        (folder / "logs" / "chief-0.log").write_text(text)

    return write


def shown(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[str, str]:
    """What the command prints, on standard output and beside it."""
    assert main(["A", *arguments]) == 0
    found = capfdbinary.readouterr()
    return found.out.decode(), found.err.decode()


def test_what_tensorflow_always_writes_is_left_out_and_counted(run, capfdbinary):
    run(f"first\n{USUAL_LINES}{OWN_LINES}no end of line")
    out, err = shown(capfdbinary)
    assert out == f"first\n{OWN_LINES}no end of line"
    count = len(USUAL_LINES.splitlines())
    assert err == f"{count} lines that TensorFlow writes in every run are left out; --all shows them\n"
    out, err = shown(capfdbinary, "--all")
    assert out == f"first\n{USUAL_LINES}{OWN_LINES}no end of line"
    assert err == ""


def test_a_log_without_them_is_shown_as_it_is(run, capfdbinary):
    run(OWN_LINES)
    assert shown(capfdbinary) == (OWN_LINES, "")


def test_each_pattern_leaves_out_a_line_and_has_a_reason():
    lines = USUAL_LINES.encode().split(b"\n")
    for usual in USUAL:
        assert usual.why
        begins = [number for number, line in enumerate(lines) if usual.begins.search(line)]
        assert len(begins) == 1
        if usual.goes_on is not None:
            assert usual.goes_on.match(lines[begins[0] + 1])
