#!/usr/bin/env bash
# pyarrow 26.0.1: `unify_schemas(promote_options="permissive")` of uint64 and int64 gives int64, which does not hold
# the larger values of uint64.
# Seen: uint32 and int32 give int64, which holds all values of both; uint64 and int64 give int64, in both orders, and a
# table with 2**63 cannot be cast to the unified schema.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
import pyarrow as pa


def unified(*types: pa.DataType) -> pa.Schema:
    return pa.unify_schemas([pa.schema({"a": each}) for each in types], promote_options="permissive")


assert unified(pa.uint32(), pa.int32()).field("a").type == pa.int64()
for types in ((pa.uint64(), pa.int64()), (pa.int64(), pa.uint64())):
    schema = unified(*types)
    print(*types, "->", schema.field("a").type)
    assert schema.field("a").type == pa.int64(), schema
try:
    pa.table({"a": pa.array([2**63], pa.uint64())}).cast(schema)
except pa.ArrowInvalid as error:
    print(error)
else:
    raise AssertionError("2**63 was cast to int64")
END
