"""The first step of processes under torchrun, which benchmarks/startup.py compares with a local cluster of psrun.

    torchrun --standalone --nproc-per-node=5 benchmarks/torch_start_by_hand.py FILE

Each process imports PyTorch, joins a gloo group on the loopback interface, and does one step with one linear layer. The
first one writes the time after its step, in seconds since 1970, to FILE.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

NUM_INPUTS = 20
BATCH_SIZE = 64


def main() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(NUM_INPUTS, 1))
    optimizer = torch.optim.Adagrad(model.parameters())
    labels = torch.randint(2, (BATCH_SIZE, 1)).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(torch.randn(BATCH_SIZE, NUM_INPUTS)), labels)
    loss.backward()
    optimizer.step()
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[1]).write_text(str(time.time()), encoding="ascii")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
