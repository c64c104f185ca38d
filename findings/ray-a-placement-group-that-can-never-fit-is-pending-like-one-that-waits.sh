#!/usr/bin/env bash
# Ray 2.60.0, Python 3.11: three bundles of one CPU on a cluster of one node with two CPUs can never be placed, and the
# cluster does not grow. Ray calls a single bundle of three CPUs infeasible, but this group only short of resources, as if
# others used them for a while: the state is PENDING / NO_RESOURCES and not PENDING / INFEASIBLE. Seen for 10 s, nothing else running.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ray==2.60.0
cat >"$folder/main.py" <<'END'
import sys
import time

import ray
from ray.util import placement_group, placement_group_table

ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=sys.argv[1])


def scheduling_state(bundles):
    group = placement_group(bundles)
    assert not group.wait(10)
    return placement_group_table(group)["stats"]["scheduling_state"]


one = scheduling_state([{"CPU": 3}])
three = scheduling_state([{"CPU": 1}] * 3)
print(f"a bundle of 3 CPUs: {one}; 3 bundles of 1 CPU: {three}")
ray.shutdown()
assert (one, three) == ("INFEASIBLE", "NO_RESOURCES")
END
"$folder/venv/bin/python" "$folder/main.py" "$folder/ray"
