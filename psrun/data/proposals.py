"""Proposes features of a table from profiles of its columns."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from psrun.data.feature_spec import FeatureSpec, name_of
from psrun.data.profiles import FEW, LONG, Profile
from psrun.errors import ConfigError, Problem

_ID_WORDS = {
    "id", "ids", "key", "code", "zip", "zipcode", "postcode", "sku", "isbn", "uuid", "user", "customer", "item",
    "product", "movie", "store", "shop", "category", "type", "device", "campaign", "advertiser", "publisher",
}  # fmt: skip
_TIME_WORDS = {"time", "timestamp", "date", "datetime", "ts", "unix", "epoch"}
_MIN_REPEATS = 10  # mean rows per value from which integers without the name of an id count as ids
_EXACT = 2**24  # larger integers are not exact as float32
_INT64 = 2**63
_BUCKETS_PER_VALUE = 8  # about one value in eight shares its id
_MANY_BUCKETS = 100_000  # above, two buckets per value are enough


@dataclass(frozen=True)
class Proposal:
    """A proposed feature; None for a column that no model can learn from. `note` holds the reason."""

    profile: Profile
    feature: FeatureSpec | None
    note: str = ""

    @property
    def ids(self) -> str:
        """How values become rows of a table; empty for numbers."""
        if self.feature is None or self.feature.dtype == "float32":
            return ""
        return "vocabulary" if self.feature.num_buckets is None else f"{self.feature.num_buckets:,} buckets"

    @property
    def examples(self) -> str:
        """The range of numbers, and some of other values."""
        if self.profile.least is not None and self.profile.most is not None:
            form = ".0f" if self.profile.whole else ".6g"
            return f"{self.profile.least:{form}} to {self.profile.most:{form}}"
        return ", ".join(str(value)[:20] for value in self.profile.values[:3])

    @property
    def missing(self) -> str:
        """The number of missing values, and their replacement."""
        default = self.feature.default if self.feature is not None else None
        count = self.profile.num_missing + (0 if default is None else self.profile.num_empty)
        if not count:
            return ""
        return f"{count:,}" if default is None else f"{count:,} as {default:g}"

    def row(self, name: str) -> dict[str, Any]:
        """The row for display and events."""
        dtype = "omitted" if self.feature is None else self.feature.dtype
        details = {"ids": self.ids, "missing": self.missing, "examples": self.examples, "note": self.note}
        return {"feature": name, "dtype": dtype, "values": self.profile.num_values, **details}


def of(profiles: Iterable[Profile], no_features: Collection[str | None], *, name: str) -> dict[str, Proposal]:
    """A proposal for each column, by the name of the feature.

    Args:
      no_features: columns to leave out: label and weight.
      name: of the file, for the messages.

    Raises:
      ConfigError: the content of a column cannot be a feature.
    """
    proposals: dict[str, Proposal] = {}
    for number, profile in enumerate(profiles, 1):
        if profile.column in no_features:
            continue
        if profile.kind == "other":
            message = f"column {profile.column!r} of {name} holds neither numbers nor strings; set data.features"
            raise ConfigError([Problem("data.features", message)])
        if not profile.column.strip():
            proposals[profile.column] = Proposal(profile, None, "column without a name, such as an index")
        else:
            proposals[_unused_name(profile.column, number, proposals)] = _proposed(profile)
    return proposals


def _unused_name(column: str, number: int, taken: Container[str]) -> str:
    """The feature name of the `number`-th column; a suffix distinguishes it from `taken` names."""
    name = name_of(column) or f"column_{number}"
    names = itertools.chain([name], (f"{name}_{suffix}" for suffix in itertools.count(2)))
    return next(each for each in names if each not in taken)


def features(proposals: Mapping[str, Proposal], num_buckets: int | None = None) -> dict[str, FeatureSpec]:
    """The features among the proposals.

    Args:
      num_buckets: ids of hashed features; None: by their number of values.
    """
    features = {name: each.feature for name, each in proposals.items() if each.feature is not None}
    if num_buckets is not None:
        hashed = [name for name, each in features.items() if each.num_buckets is not None]
        features |= {name: dataclasses.replace(features[name], num_buckets=num_buckets) for name in hashed}
    return features


def _proposed(profile: Profile) -> Proposal:
    if profile.kind == "empty":
        return Proposal(profile, None, "empty")
    if profile.kind == "strings":
        return _strings(profile)
    words = _words(profile.column) or [""]
    has_id_name = words[-1] in _ID_WORDS or words[0] == "id"
    if has_id_name and profile.whole and profile.repeats == 1 and profile.num_rows > _MIN_REPEATS:
        return Proposal(profile, None, "different in each row")
    if profile.kind == "integers" and (has_id_name or profile.varies or _are_ids(profile)):
        return _ids(profile, "int64" if max(abs(profile.least or 0), abs(profile.most or 0)) < _INT64 else "string")
    if has_id_name and profile.whole:
        return _ids(profile, "string" if profile.text else "int64")
    if profile.varies:
        return Proposal(profile, None, "numbers in lists of different lengths; they may be the weights of a list")
    default = profile.middle if profile.num_missing or profile.num_empty else None
    note = (
        "rounded: beyond 2^24"
        if profile.whole and max(abs(profile.least or 0), abs(profile.most or 0)) > _EXACT
        else ""
    )
    return Proposal(profile, FeatureSpec(column=profile.column, width=profile.width, default=default), note)


def _strings(profile: Profile) -> Proposal:
    note = "different in each row" if profile.repeats == 1 and profile.num_rows > _MIN_REPEATS else ""
    if profile.odd:
        note = f"numbers, but for {', '.join(map(repr, profile.odd[:3]))}"
    return _ids(profile, "string", note)


def _are_ids(profile: Profile) -> bool:
    """Whether integers without the name of an id are more likely ids than amounts: few, dense, or very large."""
    if profile.repeats < _MIN_REPEATS or _TIME_WORDS.intersection(_words(profile.column)):
        return False
    least, most = profile.least or 0, profile.most or 0
    return profile.num_values <= FEW or 2 * profile.num_values >= most - least + 1 or most > _EXACT


def _ids(profile: Profile, dtype: str, note: str = "") -> Proposal:
    default = None
    if dtype == "int64" and profile.num_missing:
        default = int(profile.least or 0) - 1  # none of the values in the column
    values: list[Any] = [str(each) if dtype == "string" else int(each) for each in profile.values]
    vocabulary = values if values and profile.repeats >= 2 else None
    buckets = None if vocabulary else _buckets(profile.num_values)
    feature = FeatureSpec(dtype, profile.column, profile.width, buckets, vocabulary, default=default)
    if profile.varies or profile.num_empty:
        most = min(profile.longest, LONG)
        feature = dataclasses.replace(feature, width=1, max_values=most)
        note = "; ".join(filter(None, (note, _lengths(profile))))
    return Proposal(profile, feature, note)


def _lengths(profile: Profile) -> str:
    """The lengths of lists, and how many are longer than proposed."""
    truncated = f"; {profile.num_long:,} rows truncated to {LONG}" if profile.num_long else ""
    return f"lists of up to {profile.longest:,} values{truncated}"


def _buckets(num_values: int) -> int:
    """A round number of hash buckets for a number of values."""
    num_buckets = min(_BUCKETS_PER_VALUE * num_values, max(_MANY_BUCKETS, 2 * num_values))
    unit = 10 ** max(0, len(str(num_buckets)) - 2)
    return -(-num_buckets // unit) * unit


def _words(column: str) -> list[str]:
    """The words of a name, in any spelling: 'movieId', 'movie_id', 'Movie ID'."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", column)]
