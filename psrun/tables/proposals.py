"""The guess of the features of a table from profiles of its columns, as inspect shows it and a run uses it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psrun.config.groups import quoted
from psrun.tables.contents import FEW, LISTED, spelling_warning
from psrun.tables.feature_spec import FeatureSpec, name_of
from psrun.tables.notations import ISO, NO_NOTATION, Notation
from psrun.tables.profiles import LONG, Profile

_ID_WORDS = {
    "id", "ids", "key", "code", "zip", "zipcode", "postcode", "plz", "sku", "isbn", "uuid", "user", "customer",
    "item", "product", "movie", "store", "shop", "category", "cat", "class", "type", "kind", "group", "cluster",
    "region", "zone", "district", "device", "campaign", "advertiser", "publisher", "flag", "gender", "sex",
    "race", "carrier", "station", "rownames", "rowname", "index", "row",
}  # fmt: skip
_AMOUNT_WORDS = {
    "age", "year", "years", "yr", "count", "counts", "num", "number", "no", "n", "size", "amount", "price",
    "cost", "total", "score", "rank", "rate", "rooms", "room", "bedrooms", "beds", "baths", "floors", "income",
    "day", "days", "week", "weeks", "minutes", "seconds", "hours", "weight", "height", "width", "length",
    "distance", "visits", "clicks", "views", "level", "quantity", "qty", "time", "timestamp", "date",
    "datetime", "ts", "unix", "epoch", "pixel", "temp", "temperature", "balance", "duration",
}  # fmt: skip
_CYCLE_WORDS = {"month", "weekday", "dow", "hour", "quarter", "season", "hr", "wday", "mnth"}
_PLAIN_NAME = re.compile(r"[A-Za-z]\w*")  # which the command line reads as it is
_INDEX_NAME = re.compile(r"|__index_level_\d+__|Unnamed: \d+(\.\d+)?|\.\.\.1")  # as pandas and readr name them
INDEX = "an index, by its name"
EXCLUDED = "data.exclude names it"
_MIN_ROWS = 10  # of a column that is left out because each row differs
_DIFFERS = 0.9  # share of rows with a value of their own
_MIN_REPEATS = 10  # mean rows per value from which integers without the name of an id may be ids
_FEW_AMOUNTS = 12  # different numbers, whose logarithms would change nothing
_EXACT = 2**24  # larger integers are not exact as float32
_INT64 = 2**63
_BUCKETS_PER_VALUE = 8  # about one value in eight shares its id
_MANY_BUCKETS = 100_000  # above, two buckets per value are enough
_BINS = (4, 6, 8, 12, 16, 24, 32)
_ROWS_PER_BIN = 50
_MIN_COUNTS = ((100, 1), (200_000, 3))  # up to as many rows, the rows that a value needs for its own id
_MIN_COUNT = 5  # for more rows
_TAIL = 50  # how many times the median the largest of the numbers with a long tail is
_FREE_TEXT = 3.0  # mean number of words
_NAMED = 3  # columns in a line about several
_SHOWN_SHARE = 0.0005
_PARTS = {"month": "1 to 12", "weekday": "0 (Monday) to 6", "hour": "0 to 23"}
_PART_DEFAULT = -1  # no month, weekday or hour


@dataclass(frozen=True)
class Proposal:
    """A proposed feature; None for a column that no model can learn from. `note` holds the reason.

    Attributes:
      share_rare: of a vocabulary, the share of the rows whose values have no id of their own.
      share_colliding: of hash buckets, the expected share of the values that share their bucket with another.
    """

    profile: Profile
    feature: FeatureSpec | None
    note: str = ""
    share_rare: float = 0.0
    share_colliding: float = 0.0

    @property
    def ids(self) -> str:
        """How values become rows of a table, or numbers intervals."""
        if self.feature is None:
            return ""
        if self.feature.vocabulary is not None:
            if not self.share_rare:
                return "vocabulary"
            rare = f", {_percent(self.share_rare)} of rows rare" if self.share_rare >= _SHOWN_SHARE else ""
            return f"vocabulary of {len(self.feature.vocabulary):,}{rare}"
        if self.feature.num_buckets is not None:
            return f"{self.feature.num_buckets:,} buckets, {_percent(self.share_colliding)} of values collide"
        return f"{self.feature.bins} bins" if self.feature.bins else ""

    @property
    def num_values(self) -> int:
        """The number of different values of the feature; of hash buckets and of rare values, those of the column."""
        part = None if self.feature is None else self.feature.part
        profile = self.profile
        by_part = {"month": profile.num_months, "weekday": profile.num_weekdays, "hour": profile.num_hours}
        return by_part.get(part or "", profile.num_values)

    @property
    def examples(self) -> str:
        """The range of numbers and times, and some of other values."""
        least = self.profile.least
        most = self.profile.most
        if self.feature is not None and self.feature.part in _PARTS:
            return _PARTS[self.feature.part]
        if least is not None and most is not None:
            if least == most:
                return shown(least)
            return f"{shown(least)} to {shown(most)}"
        return ", ".join(str(value)[:20] for value in self.profile.values[:3] or self.profile.examples)

    @property
    def missing(self) -> str:
        """The number of missing values, and their replacement."""
        default = self.feature.default if self.feature is not None else None
        has_default = default not in (None, "")
        count = self.profile.num_missing + (self.profile.num_empty if has_default else 0)
        if not count:
            return ""
        return f"{count:,} as {default}" if has_default else f"{count:,}"

    def row(self, name: str) -> dict[str, Any]:
        """The row for display and events."""
        dtype = "omitted" if self.feature is None else self.feature.dtype
        details = {"ids": self.ids, "missing": self.missing, "examples": self.examples, "note": self.note}
        return {"feature": name, "dtype": dtype, "values": self.num_values, **details}


def shown(value: float | str) -> str:
    """A number or time for display; whole numbers with all their digits."""
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < _INT64 else f"{value:.6g}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def propose(
    profiles: Iterable[Profile],
    no_features: Collection[str | None],
    indexes: Collection[str] = (),
    exclude: Collection[str] = (),
) -> dict[str, Proposal]:
    """The proposals for each column, by the name of the feature; several for a column of times.

    Args:
      no_features: columns to leave out: label and weight.
      indexes: columns that the files themselves call indexes.
      exclude: columns that the user excludes.
    """
    proposals: dict[str, Proposal] = {}
    for number, profile in enumerate(profiles, 1):
        if profile.column in no_features:
            continue
        if profile.column in exclude:
            proposals[profile.column] = Proposal(profile, None, EXCLUDED)
            continue
        if profile.column in indexes or _INDEX_NAME.fullmatch(profile.column.strip()):
            proposals[profile.column] = Proposal(profile, None, INDEX)
            continue
        if profile.kind == "other":
            proposals[profile.column] = Proposal(profile, None, "neither numbers nor words")
            continue
        base = name_of(profile.column) or f"column_{number}"
        for suffix, proposal in _proposed(profile).items():
            proposals[_unused_name(f"{base}{suffix}", proposals)] = proposal
    return proposals


def _unused_name(name: str, taken: Container[str]) -> str:
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


def warnings(proposals: Mapping[str, Proposal], notation: Notation = NO_NOTATION) -> Iterator[str]:
    """What a user should know about the values, in lines."""
    if all(each.feature is None for each in proposals.values()):
        yield nothing_left(proposals, notation)
    else:
        yield from _unread(proposals, notation)
    for name, each in proposals.items():
        if each.feature is not None and each.feature.dtype == "string" and each.profile.spellings:
            yield spelling_warning(name, each.profile.spellings)
        if each.feature is not None and each.feature.dtype == "string" and _looks_like_lists(each.profile):
            example = str(each.profile.values[0] if each.profile.values else each.profile.examples[0])[:40]
            yield (
                f"{name} has texts that look like lists, such as {example!r}, and are one value each; write them as "
                f"a|b|c, and set max_values for {name} (data.features)"
            )


def index_note(proposals: Mapping[str, Proposal]) -> str:
    """A line about the columns that are left out as indexes; empty if there are none."""
    columns = [repr(each.profile.column) for each in proposals.values() if each.note == INDEX]
    if not columns:
        return ""
    return f"left out as an index that another program wrote: {_some(columns)}; to keep it, name it in data.features"


def leak_warnings(proposals: Mapping[str, Proposal]) -> Iterator[str]:
    """Lines about features whose column decides a label, one for each label."""
    by_label: dict[str, dict[str, None]] = {}
    for each in proposals.values():
        if each.feature is not None:
            for label in each.profile.decides:
                by_label.setdefault(label, {})[each.profile.column] = None
    for label, columns in by_label.items():
        first, *others = columns
        which = f"each of {_some([*columns])}" if others else first
        yield (
            f"label {label}: {which} decides the label by itself: each of its values has one label. If it is not "
            f"known when you predict, leave it out: {_excluding([*columns])}. If its values are groups, such as users, "
            f"hold out whole groups: data.split.by=group data.split.column={shlex.quote(first)}"
        )


def _unread(proposals: Mapping[str, Proposal], notation: Notation) -> Iterator[str]:
    """Lines about columns that look like numbers or times and are not read so, one for each reason."""
    by_reason: dict[str, dict[str, Profile]] = {}
    for name, each in proposals.items():
        reason = _why_unread(each.profile, notation)
        if reason:
            by_reason.setdefault(reason, {})[name] = each.profile
    for reason, profiles in by_reason.items():
        name, profile = next(iter(profiles.items()))
        values = {"value": profile.samples[0], "odd": next(iter(profile.odd), ""), "other": profile.samples[-1]}
        odd = f", except {values['odd']!r}" if profile.odd else ""
        yield f"{_some(list(profiles))}: {reason.format(column=name, but=odd, **values)}"


def _why_unread(profile: Profile, notation: Notation) -> str:
    """Why a column that looks like numbers or times is not read so, with places for its values; empty if it is read."""
    if profile.look == "formatted":
        if len(profile.samples) > 1:
            return "not read as numbers, since the units differ: {value!r} and {other!r} in {column}"
        if notation.decimal_mark is None:
            return f"not read as numbers, such as {{value!r}} in {{column}}{{but}}; {_set_mark(profile)}"
        fits = f"does not fit data.decimal_mark={notation.decimal_mark}"
        return f"not read as numbers, since {{odd!r}} in {{column}} {fits}"
    if profile.look == "iso":
        what = "not read as dates or times of ISO 8601, such as {value!r} in {column}{but}"
        return f"{what}; write it so, or leave it empty"
    if profile.look == "times":
        if notation.time_format is None:
            how = "set data.time_format as strptime takes it, such as %d.%m.%Y"
            return f"not read as dates or times, such as {{value!r}} in {{column}}{{but}}; {how}"
        fits = f"does not fit data.time_format={notation.time_format}"
        return f"not read as dates or times, since {{odd!r}} in {{column}} {fits}"
    return ""


def _excluding(columns: Sequence[str]) -> str:
    """The argument that excludes columns, for a shell."""
    names = []
    for column in columns:
        if _PLAIN_NAME.fullmatch(column):
            names.append(column)
        elif '"' in column or "\\" in column:
            names.append(quoted(column))
        else:
            names.append(f'"{column}"')  # within the single quotes of the shell
    return shlex.quote(f"data.exclude=[{','.join(names)}]")


def _set_mark(profile: Profile) -> str:
    """How to have a column read as numbers: by the mark that some value of it requires, if only one does."""
    if len(profile.proofs) != 1:
        return "set data.decimal_mark to . or ,"
    (mark,) = profile.proofs
    return f"for numbers, set 'data.decimal_mark=\"{mark}\"'"


def _some(names: Sequence[str]) -> str:
    """The first names of a list, and how many others there are."""
    others = len(names) - _NAMED
    return ", ".join(names) if others <= 0 else f"{', '.join(names[:_NAMED])} and {others} more"


def nothing_left(proposals: Mapping[str, Proposal], notation: Notation = NO_NOTATION) -> str:
    """Why no column is a feature, and which keys would change that."""
    reasons = "; ".join(f"{name or 'a column'}: {each.note}" for name, each in proposals.items())
    left = f"no column is left to learn from{f' ({reasons})' if reasons else ''}"
    return "; ".join([left, *_unread(proposals, notation)])


def _looks_like_lists(profile: Profile) -> bool:
    values = [str(each).strip() for each in (*profile.values[:20], *profile.examples)]
    return bool(values) and all(len(each) > 1 and each[0] + each[-1] in ("[]", "()", "{}") for each in values)


def _proposed(profile: Profile) -> dict[str, Proposal]:
    """The proposals for a column, by the ends of their names."""
    if reason := _useless(profile):
        return {"": Proposal(profile, None, reason)}
    if profile.kind == "times":
        return _times(profile)
    if profile.kind == "strings":
        return {"": _strings(profile)}
    if profile.kind == "booleans":
        return {"": _ids(profile, "int64")}
    if profile.kind == "integers" and _are_ids(profile):
        return {"": _ids(profile, "int64" if _fits_int64(profile) else "string")}
    if profile.kind == "numbers" and profile.whole and not profile.samples and _has_id_name(profile):
        return {"": _ids(profile, "string" if profile.text else "int64")}
    if profile.is_list and profile.varies:
        note = "numbers in lists of different lengths; they may be the weights of a list"
        return {"": Proposal(profile, None, note)}
    return {"": _numbers(profile)}


def _useless(profile: Profile) -> str:
    """Why no model can learn from a column; empty if it can."""
    if profile.kind == "empty":
        return "empty"
    if profile.num_values == 1 and not profile.num_missing and not profile.is_list:
        return "the same in each row"
    if profile.is_index and profile.num_rows > _MIN_ROWS:
        return "counts the rows, as an index does"
    if profile.is_list or profile.width > 1 or profile.num_rows <= _MIN_ROWS:
        return ""
    is_id = profile.kind == "strings" or (profile.whole and (_has_id_name(profile) or not _fits_int64(profile)))
    if not is_id or profile.num_once < _DIFFERS * profile.num_present:
        return ""
    what = "free text, " if profile.mean_words >= _FREE_TEXT else ""
    return f"{what}different in {'each row' if profile.num_once == profile.num_present else 'nearly each row'}"


def _fits_int64(profile: Profile) -> bool:
    """Whether the values are int64, and there is another int64 beside them for those that are missing."""
    least, most = profile.limits
    is_full = least == -_INT64 and most == _INT64 - 1
    return max(-least - 1, most) < _INT64 and not (is_full and profile.num_missing)


def _words(column: str) -> list[str]:
    """The words of a name, in any spelling: 'movieId', 'movie_id', 'Movie ID'."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", column)]


def _has_id_name(profile: Profile) -> bool:
    words = _words(profile.column) or [""]
    return words[-1] in _ID_WORDS or words[0] == "id"


def _are_ids(profile: Profile) -> bool:
    """Whether integers are rather names of things than amounts.

    An amount of up to 32 values has a bin for each value, so that ids of few values lose little as an amount; many ids
    lose all.
    """
    words = set(_words(profile.column))
    if _has_id_name(profile) or profile.is_list or not _fits_int64(profile) or profile.limits == (0, 1):
        return True
    if words & _CYCLE_WORDS and profile.num_values <= _BINS[-1]:
        return True
    if profile.repeats < _MIN_REPEATS or words & _AMOUNT_WORDS:
        return False
    least, most = profile.limits
    if most > _EXACT:
        return True
    return profile.num_values > FEW and least in (0, 1) and profile.num_values == most - least + 1


def _times(profile: Profile) -> dict[str, Proposal]:
    """The days as a number, and what repeats: month, weekday and hour."""
    plain = FeatureSpec("int64", profile.column, time_format=profile.time_format)
    note = f"read as {profile.time_format}" if profile.time_format not in (None, ISO) else ""
    has_missing = bool(profile.num_missing)
    proposals = {}
    if profile.num_days > 1 or profile.num_hours > 1 or has_missing:
        days = dataclasses.replace(plain, dtype="float32", part="days", nullable=has_missing, bins=_bins(profile))
        proposals["_days"] = Proposal(profile, days, note)
    default = _PART_DEFAULT if has_missing else None
    for part, count, values in (
        ("month", profile.num_months, range(1, 13)),
        ("weekday", profile.num_weekdays, range(7)),
        ("hour", profile.num_hours, range(24)),
    ):
        if count > 1:
            feature = dataclasses.replace(plain, part=part, vocabulary=list(values), default=default)
            proposals[f"_{part}"] = Proposal(profile, feature)
    return proposals


def _numbers(profile: Profile) -> Proposal:
    notes = []
    least, most = profile.limits
    middle = profile.middle if isinstance(profile.middle, int | float) else 0
    if profile.whole and max(-least, most) > _EXACT:
        notes.append("rounded: beyond 2^24")
    if profile.samples:
        notes.append(f"read as numbers such as {profile.samples[0]}")
    has_tail = least >= 0 and profile.num_values > _FEW_AMOUNTS and most > _TAIL * max(middle, 1)
    if has_tail:
        notes.append("logarithm: a long tail")
    feature = FeatureSpec(
        "float32",
        column=profile.column,
        width=profile.width,
        logarithm=has_tail,
        nullable=bool(profile.num_missing or profile.num_empty),
        bins=_bins(profile),
        decimal_mark=profile.decimal_mark,
        unit=profile.unit,
    )
    return Proposal(profile, feature, "; ".join(notes))


def _bins(profile: Profile) -> int | None:
    """One for 50 rows, from 4 to 32: tuned on `benchmarks/tables.py`. None for rows of several values."""
    count = profile.num_rows // _ROWS_PER_BIN
    return max([_BINS[0], *(bins for bins in _BINS if bins <= count)]) if profile.width == 1 else None


def _strings(profile: Profile) -> Proposal:
    notes = []
    if profile.look == "numbers":
        notes.append(f"numbers, except {', '.join(map(repr, profile.odd[:3]))}")
    if count := len(profile.spellings):
        notes.append(f"{count} {'value is' if count == 1 else 'values are'} written in several ways")
    return _ids(profile, "string", "; ".join(notes))


def _ids(profile: Profile, dtype: str, note: str = "") -> Proposal:
    default: Any = None
    if profile.num_missing and dtype == "int64":
        least, most = profile.limits
        default = int(least) - 1 if least > -_INT64 else int(most) + 1  # none of the values in the column
    elif profile.num_null:
        default = ""
    vocabulary, share_rare = _vocabulary(profile, dtype)
    buckets = _buckets(profile.num_values) if vocabulary is None else None
    if vocabulary is not None and share_rare >= _DIFFERS and not profile.is_list:
        return Proposal(profile, None, "different in nearly each row")
    feature = FeatureSpec(dtype, profile.column, profile.width, buckets, vocabulary, default=default)
    if profile.is_list:
        feature = dataclasses.replace(feature, width=1, max_values=min(profile.longest, LONG))
        note = "; ".join(filter(None, (note, _lengths(profile))))
    colliding = 0.0 if buckets is None else 1 - (1 - 1 / buckets) ** (profile.num_values - 1)
    return Proposal(profile, feature, note, share_rare, colliding)


def _vocabulary(profile: Profile, dtype: str) -> tuple[list[Any] | None, float]:
    """The values that have an id of their own, sorted, and the share of the rows of others; None if too many."""
    if not profile.is_exact or not profile.values:
        return None, 0.0
    limit = next((count for rows, count in _MIN_COUNTS if profile.num_rows <= rows), _MIN_COUNT)
    kept = [(value, count) for value, count in zip(profile.values, profile.counts) if count >= limit]
    if len(kept) < 2 and profile.num_values <= FEW:
        kept = list(zip(profile.values, profile.counts))
    is_complete = len(profile.values) < LISTED or profile.num_values <= LISTED
    if not kept or not is_complete:
        return None, 0.0
    share_rare = 1 - sum(count for _, count in kept) / max(1, profile.num_present)
    values = [str(value) if dtype == "string" else int(value) for value, _ in kept]
    return sorted(values), max(0.0, share_rare)


def _lengths(profile: Profile) -> str:
    """The lengths of lists, and how many are longer than proposed."""
    truncated = f"; {profile.num_long:,} rows truncated to {LONG}" if profile.num_long else ""
    return f"lists of up to {profile.longest:,} values{truncated}"


def _buckets(num_values: int) -> int:
    """A round number of hash buckets for a number of values."""
    num_buckets = min(_BUCKETS_PER_VALUE * num_values, max(_MANY_BUCKETS, 2 * num_values))
    unit = 10 ** max(0, len(str(num_buckets)) - 2)
    return -(-num_buckets // unit) * unit
