"""The list of faults that `tests/mutants.py` puts back fits the code."""

from __future__ import annotations

from collections import Counter

from mutants import read
from support import REPOSITORY


def test_each_mutant_fits_the_code():
    mutants = read()
    misfits = [f"{mutant}: {why}" for mutant in mutants if (why := mutant.misfit(REPOSITORY))]
    assert misfits == []
    assert [name for name, count in Counter(map(str, mutants)).items() if count > 1] == []
