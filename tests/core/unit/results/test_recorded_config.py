"""The recorded configuration of a run that is resumed."""

from __future__ import annotations

from psrun.results import recorded_config

RECORDED = """
cluster:
  kind: static
  num_data_workers: 1
  num_ps: 2
  addresses: {chief: ['c:1'], data_dispatcher: [], data_worker: []}
  resources: {chief: {num_cpus: 1}, data_dispatcher: {num_cpus: 1}, data_worker: {num_cpus: 1}}
data: {visitation: once, audit: true}
trainer: {folder: '${hydra:runtime.output_dir}/x'}
"""


def test_keys_that_psrun_no_longer_has_are_left_out(tmp_path):
    """Every run recorded them: as unknown keys they would stop its resumption."""
    (tmp_path / "config.yaml").write_text(RECORDED)
    assert recorded_config.read(tmp_path / "config.yaml") == {
        "cluster": {
            "kind": "static",
            "num_ps": 2,
            "addresses": {"chief": ["c:1"]},
            "resources": {"chief": {"num_cpus": 1}},
        },
        "data": {"visitation": "once"},
        "trainer": {"folder": "${hydra:runtime.output_dir}/x"},
    }
