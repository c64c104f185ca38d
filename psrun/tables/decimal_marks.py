"""Whether numbers with a point may have a decimal comma: then the user has to say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from psrun.errors import ConfigError, Problem
from psrun.tables import label_guess
from psrun.tables.profiles import Profile
from psrun.tables.rows import Layout

KEY = "data.decimal_mark"


def check(profiles: Mapping[str, Profile], used: Collection[str], layout: Layout) -> None:
    """Checks that the plain numbers of a data set without `data.decimal_mark` have one reading.

    Args:
      profiles: of all columns.
      used: the columns that are features or labels.

    Raises:
      ConfigError: a used column has another reading with a decimal comma, and something in the files indicates it.
    """
    for column in used:
        text = profiles[column].two_ways
        if text is None:
            continue
        evidence = _for_the_comma(profiles, layout) or _for_thousands(profiles[column])
        if evidence:
            message = f"is needed for column {column!r}: {label_guess.readings(text)}; {evidence}"
            raise ConfigError([Problem(KEY, message)])


def _for_the_comma(profiles: Mapping[str, Profile], layout: Layout) -> str:
    """What indicates a decimal comma, in words; empty if nothing does, or the delimiter alone against a proof."""
    comma = _proof(profiles, ",")
    point = _proof(profiles, ".")
    if comma and point:
        return f"{comma} indicates a decimal comma, {point} a decimal point"
    if comma:
        return f"{comma} indicates a decimal comma"
    if layout.is_text and layout.delimiter == ";" and not point:
        return "the delimiter ; indicates a decimal comma"
    return ""


def _for_thousands(profile: Profile) -> str:
    if profile.beside_thousands is None:
        return ""
    return f"{profile.beside_thousands!r} beside it, and three digits after every point, indicate a decimal comma"


def _proof(profiles: Mapping[str, Profile], mark: str) -> str:
    for column, profile in profiles.items():
        if mark in profile.proofs:
            return f"{profile.proofs[mark]!r} in column {column!r}"
    return ""
