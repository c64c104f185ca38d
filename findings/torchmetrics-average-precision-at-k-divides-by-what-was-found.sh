#!/usr/bin/env bash
# torchmetrics 1.9.0: average precision with top_k is divided by the number of relevant items among the first k, not by
# all relevant items or by k. A list with one relevant item first and nine missing ones has 1.0, as if it were perfect,
# and so mean average precision at k does not see what a model misses. Libraries that follow TREC divide by all relevant
# items (0.1 here), others by at most k (0.2). Recall of the same list says 0.1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torchmetrics==1.9.0 torch==2.14.1 >/dev/null 2>&1
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torchmetrics.functional.retrieval import retrieval_average_precision, retrieval_recall

scores = torch.linspace(1, 0, 20)
relevant = torch.zeros(20, dtype=torch.bool)
relevant[0] = True  # one relevant item is first
relevant[11:] = True  # nine are last
found = float(retrieval_average_precision(scores, relevant, top_k=5))
recall = float(retrieval_recall(scores, relevant, top_k=5))
print(f"average precision at 5: {found:.2f}; recall at 5: {recall:.2f}")
assert (round(found, 2), round(recall, 2)) == (1.0, 0.1), "the behaviour has changed"
PYTHON
