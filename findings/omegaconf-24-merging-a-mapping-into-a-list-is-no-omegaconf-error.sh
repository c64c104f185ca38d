#!/usr/bin/env bash
# OmegaConf 2.4.1rc1 beside 2.3.1, Python 3.11: a merge of a mapping and a list. In 2.3 it raises ConfigTypeError, a subclass of
# OmegaConfBaseException, as every other wrong merge does. In 2.4 OmegaConf.merge and unsafe_merge raise Python's own
# TypeError, without a key, which handlers of OmegaConf's errors let pass; OmegaConf.update still raises ConfigTypeError.
# Seen: {"callbacks": {"a": 1}} merged into {"callbacks": [1]}.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/main.py" <<'END'
import sys
from importlib.metadata import version

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


def error_of(call):
    try:
        call()
    except OmegaConfBaseException as error:
        return f"OmegaConf's {type(error).__name__}"
    except Exception as error:
        return f"Python's {type(error).__name__}"


merged = error_of(lambda: OmegaConf.merge({"callbacks": [1]}, {"callbacks": {"a": 1}}))
updated = error_of(lambda: OmegaConf.update(OmegaConf.create({"callbacks": [1]}), "callbacks", {"a": 1}))
print(f"{version('omegaconf')}: merge raises {merged}, update {updated}")
assert (merged, updated) == (sys.argv[1], "OmegaConf's ConfigTypeError")
END
for expected in "2.3.1 OmegaConf's ConfigTypeError" "2.4.1rc1 Python's TypeError"; do
  python3 -m venv "$folder/${expected%% *}"
  "$folder/${expected%% *}/bin/pip" install -q "omegaconf==${expected%% *}"
  "$folder/${expected%% *}/bin/python" "$folder/main.py" "${expected#* }"
done
