"""How a test compares what an error says with the golden file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import HARNESS, stated


@pytest.fixture
def says(snapshot, tmp_path):
    """Compares the error of a call with the golden file, which has its type, too."""

    def compare(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            call(*arguments, **options)
        assert stated(raised.value, tmp=tmp_path, harness=HARNESS) == snapshot

    return compare
