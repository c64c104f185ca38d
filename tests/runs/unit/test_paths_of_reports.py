"""Where commands over runs write: on mounted disks only."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["-m", "seed=1,2", "hydra.sweep.dir=s3://bucket/sweep"], "hydra.sweep.dir"),
        (["-m", "seed=1,2", "hydra.sweep.subdir='gs://bucket/${hydra.job.num}'"], "hydra.sweep.subdir"),
        (["report", "runs", "--html", "gs://bucket/page.html"], "--html"),
        (["report", "runs", "--csv", "gs://bucket/page.csv"], "--csv"),
    ],
)
def test_a_path_with_a_scheme_is_refused(refuses_to_write, command, key):
    refuses_to_write(command, key)
