"""`psrun data inspect` writes what a run infers and records."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from psrun.data import commands, feature_spec

pytestmark = pytest.mark.tensorflow


def test_what_inspect_writes_is_what_a_run_infers(tmp_path, monkeypatch, capsys):
    from psrun.data.table import Table

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(1)
    words, rates, outcomes = ["a", "b", "NA"], ["1.5", "?", "2"], ["good", "bad", ""]
    rows = [
        (rng.integers(60), rng.choice(words), rng.choice(rates), f"${n % 90}", f"2026-{n % 12 + 1:02}-03",
         rng.integers(300), rng.choice(outcomes))
        for n in range(1200)
    ]  # fmt: skip
    lines = [",".join(map(str, row)) for row in rows]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["age,word,rate,price,sold,user_id,outcome", *lines]) + "\n")
    commands.main(["inspect", str(path), "--label", "outcome", "--write", str(tmp_path / "data" / "mine.yaml")])
    written = yaml.safe_load((tmp_path / "data" / "mine.yaml").read_text())
    inferred = Table(path=str(path), label="outcome", split=0.1).facts
    described = feature_spec.read(written["features"])
    for name, recorded in feature_spec.read(inferred["features"]).items():
        vocabulary = described[name].vocabulary
        if isinstance(vocabulary, str):  # a long one, in a file
            vocabulary = feature_spec.listed(tmp_path / vocabulary, recorded.dtype)
        assert (vocabulary, {**feature_spec.options(described[name]), "vocabulary": None, "column": None}) == (
            recorded.vocabulary,
            {**feature_spec.options(recorded), "vocabulary": None, "column": None},
        )
    assert set(described) == set(inferred["features"])
    assert {key: written[key] for key in ("task", "label_vocabulary")} == inferred["label"]
    assert inferred["label"] == {"task": "binary", "label_vocabulary": ["bad", "good"]}
    capsys.readouterr()
