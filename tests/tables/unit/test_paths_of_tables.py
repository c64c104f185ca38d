"""Where commands on data write: on mounted disks only."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["data", "synthesize", "gs://bucket/data"], "folder"),
        (["data", "inspect", "a.csv", "--write", "gs://bucket/a.yaml"], "--write"),
    ],
)
def test_a_path_with_a_scheme_is_refused(refuses_to_write, command, key):
    refuses_to_write(command, key)
