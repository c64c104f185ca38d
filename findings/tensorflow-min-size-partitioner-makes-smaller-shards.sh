#!/usr/bin/env bash
# TensorFlow 2.21.0: `tf.distribute.experimental.partitioners.MinSizePartitioner` "ensures each shard has at least
# min_shard_bytes". It divides the bytes of the variable and rounds the number of shards up or down without a look at
# its rows. Seen: a float32 table of 10 rows of 64 bytes with min_shard_bytes=192 is cut in 4 shards, two of 192 and two
# of 128 bytes; 7 rows of 4 bytes with min_shard_bytes=8 in 8, 8, 8 and 4 bytes. Three shards each would obey.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tensorflow==2.21.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'END_OF_CODE'
import tensorflow as tf

# As parameter servers store it: the first rows are dealt to the first shards, one more each while some are left.
for shape, min_shard_bytes, seen in (((10, 16), 192, [192, 192, 128, 128]), ((7, 1), 8, [8, 8, 8, 4])):
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes, max_shards=100)
    num_shards = partitioner(tf.TensorShape(shape), tf.float32)[0]
    rows, row_bytes = shape[0], 4 * shape[1]
    sizes = [row_bytes * (rows // num_shards + (shard < rows % num_shards)) for shard in range(num_shards)]
    print(f"{rows} rows of {row_bytes} bytes, min_shard_bytes={min_shard_bytes}: shards of {sizes} bytes")
    assert sizes == seen, sizes
    assert min(sizes) < min_shard_bytes
END_OF_CODE
