"""A key that a part reads is refused with one sentence where the part is not installed."""

from __future__ import annotations

import shlex

import pytest
from messages import refused
from plain_config import plain_config

from psrun import parts
from psrun.config import parse

KEYS = {
    "model=dense model.metrics=[ndcg@10]": "model.metrics[0]",
    "model=dense evaluation.by=[x]": "evaluation.by",
    "model=dense evaluation.user=x evaluation.candidates=all": "evaluation.user, evaluation.candidates",
    "model=dense predict.top_k=3": "predict.top_k",
    "model=dense export.top_k=3": "export.top_k",
}


@pytest.mark.parametrize("arguments", KEYS)
def test_a_key_of_a_part_that_is_not_there_is_refused(arguments, monkeypatch):
    monkeypatch.setattr(parts, "own", lambda: ())
    refused(KEYS[arguments], parse.load, plain_config(*shlex.split(arguments)))
