"""What the rows that a model was trained on had, and how other rows differ: words, ranges, missing values, classes.

Every value of the prepared rows is counted. Words are those of features with a vocabulary: of hashed features it is not
known which words the training had.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from pyarrow import ipc

from psrun.data.source import Feature
from psrun.tables import feature_spec
from psrun.tables.columns import is_list
from psrun.tables.prepared_rows import PreparedRows

_SHARE = 0.01  # of a feature's values that differ without a warning
_CHANCE = 1e-3  # with which as many values of the usual share differ, at most
_LISTED = 1000  # different unknown words that are remembered
_WARNED = 5  # features with a line of their own
_FACTORS = (100, 0.01, 1000, 0.001)  # between units that people confuse
_NEARLY_ALL = 0.99
_ROUNDING = 1e-6  # of a range: float32 and a factor move its ends


@dataclass
class _Counted:
    """The values of one feature.

    Attributes:
      num_values: without missing numbers.
      unknown: how many are not in the vocabulary; `words`: these and how often they occur, the first 1,000.
      outside: how many are beyond a range; `example`: one of them; `scaled`: by factor, how many are within it then.
      low: how many are in the lowest bin of the training.
    """

    num_values: int = 0
    missing: int = 0
    unknown: int = 0
    words: Counter[Any] = field(default_factory=Counter)
    least: float = math.inf
    most: float = -math.inf
    outside: int = 0
    example: float | None = None
    scaled: Counter[float] = field(default_factory=Counter)
    low: int = 0


@dataclass(frozen=True)
class Differences:
    """How rows differ from those of the training.

    Attributes:
      facts: the counts by feature, for run.json.
      warnings: a line for each feature that differs in more than 1 % of its values, beyond what the training had.
      notes: lines about what is as it should be.
    """

    facts: Mapping[str, Any]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()


def training_record(rows: PreparedRows, features: Mapping[str, Feature], label: str | None) -> dict[str, Any]:
    """What run.json has of the training rows: by feature the share of words without an id, or the range of numbers and
    the share of missing ones.

    Args:
      features: with labels that are numbers, which have a range, too.
      label: the column with class numbers; None for none.
    """
    record: dict[str, Any] = {}
    for name, counted in _count(rows, features, {}).items():
        if features[name].vocabulary is not None:
            record[name] = {"unknown_share": counted.unknown / max(1, counted.num_values)}
        elif counted.num_values:
            missing_share = counted.missing / (counted.num_values + counted.missing)
            record[name] = {"least": counted.least, "most": counted.most, "missing_share": missing_share}
    classes = {} if label is None else {"classes": sorted(_classes(rows, label))}
    return {"features": record, **classes}


def differences(
    rows: PreparedRows,
    features: Mapping[str, Feature],
    trained: Mapping[str, Any],
    *,
    title: str,
    label: str | None,
    class_names: Collection[Any] | None = None,
    skipped: Collection[int] = (),
    is_sample: bool = False,
    is_later: bool = False,
) -> Differences:
    """How rows differ from those that `training_record` has described.

    Args:
      trained: the record. The numbers of a feature that it lacks are not counted.
      title: what the rows are, as in "of the evaluation rows".
      label: as in `training_record`.
      class_names: of the classes 0, 1, ...; None without names.
      skipped: numbers of malformed rows, whose values mean nothing.
      is_sample: whether the rows are a part of the training files: what chance explains is no difference then.
      is_later: whether the split held the latest rows out, in which new times and words are as it should be: a note.
    """
    known = trained.get("features", {})
    counts = _count(rows, features, known, skipped)
    words = {name: each.unknown for name, each in counts.items() if features[name].vocabulary is not None}
    numbers = {name: each.outside for name, each in counts.items() if "least" in known.get(name, {})}
    missing = {name: counts[name].missing for name in numbers if counts[name].missing}
    texts = []
    later = []
    for name, each in counts.items():
        text = _text(features[name], each, known.get(name, {}), is_sample=is_sample)
        if text is None:
            continue
        if is_later:
            later.append(name)
        else:
            texts.append((name, text))
    warnings = [*_lines(texts, title)]
    facts: dict[str, Any] = {
        "examples": rows.num_examples - len(skipped),
        "unknown_words": words,
        "outside_of_range": numbers,
        "missing": missing,
    }
    if label is not None and "classes" in trained:
        new_classes = {}
        for number, count in _classes(rows, label).items():
            if number in trained["classes"]:
                continue
            shown = str(number) if class_names is None else repr([*class_names][number])
            new_classes[shown] = count
            warnings.append(f"{title}: {count:,} have the class {shown}, which no training row has")
        facts["unknown_classes"] = new_classes
    notes = []
    if later:
        names = ", ".join(map(repr, later))
        message = f"the held-out rows are later than the others. More of their values than usual are new in {names}"
        notes.append(f"{message}: the model has learned nothing about these values")
    return Differences(facts, tuple(warnings), tuple(notes))


def _lines(texts: list[tuple[str, str]], title: str) -> Iterator[str]:
    for name, text in texts[:_WARNED]:
        yield f"{title}: {name}: {text}"
    rest = [name for name, _ in texts[_WARNED:]]
    if rest:
        shown = ", ".join(rest[:_WARNED])
        more = ", ..." if len(rest) > _WARNED else ""
        yield f"{title}: {len(rest)} more features differ from the training so: {shown}{more} (data in run.json)"


def _text(feature: Feature, counted: _Counted, known: Mapping[str, Any], *, is_sample: bool) -> str | None:
    """How a feature differs; None if it does not."""
    total = counted.num_values
    exceeds = functools.partial(_exceeds, is_sample=is_sample)
    if feature.vocabulary is not None:
        usual = known.get("unknown_share", 0.0)
        if not exceeds(counted.unknown, total, usual):
            return None
        text = f"{_share(counted.unknown, total)} are not among the words that the training knew"
        if usual:
            text += f" (in the training {usual:.1%})"
        return f"{text}, {_spelling(feature, counted)}"
    if "least" not in known:
        return None
    num_rows = total + counted.missing
    usual = known.get("missing_share", 0.0)
    if exceeds(counted.missing, num_rows, usual):
        before = f"{usual:.1%} were" if usual else "none was"
        return f"{_share(counted.missing, num_rows)} are missing, and {before} in the training"
    span = f"the training's range from {known['least']:g} to {known['most']:g}"
    if exceeds(counted.outside, total, 0.0):
        text = f"{_share(counted.outside, total)} lie outside of {span}, such as {counted.example:g}"
        return text + _unit(counted.scaled, counted.outside)
    return _too_small(feature, counted, known, span)


def _too_small(feature: Feature, counted: _Counted, known: Mapping[str, Any], span: str) -> str | None:
    """Numbers within the range that are a fraction of the training's, such as 0.9 for 90."""
    num_bins = max(1, len(feature.boundaries) - 1)
    are_low = counted.low >= _NEARLY_ALL * counted.num_values and num_bins > 1
    if not are_low or counted.num_values * math.log(num_bins) < -math.log(_CHANCE) or counted.most <= 0:
        return None
    least, most = _rounded(known)
    for factor in (100, 1000):
        if known["most"] / 2 <= counted.most * factor <= most and counted.least * factor >= least:
            text = f"all values lie from {counted.least:g} to {counted.most:g}, at the lower end of {span}"
            return f"{text}; multiplied by {factor} they would fill it: are they in another unit?"
    return None


def _rounded(known: Mapping[str, Any]) -> tuple[float, float]:
    """The ends of a range, where numbers that were multiplied still lie in it."""
    slack = _ROUNDING * max(abs(known["least"]), abs(known["most"]))
    return known["least"] - slack, known["most"] + slack


def _unit(scaled: Mapping[float, int], outside: int) -> str:
    for factor, count in scaled.items():
        if count >= _NEARLY_ALL * outside:
            return f"; multiplied by {factor:g} they lie within it: are they in another unit?"
    return ""


def _spelling(feature: Feature, counted: _Counted) -> str:
    """An unknown word and, where most are known in another spelling, that one."""
    example = next(iter(counted.words), None)
    if feature.dtype != tf.string:
        return f"such as {example}"
    plain: dict[str, str] = {}
    for word in _vocabulary(feature):
        plain.setdefault(_plain(word), word)
    twins = {word: plain[_plain(word)] for word in counted.words if _plain(word) in plain}
    if sum(counted.words[word] for word in twins) * 2 < counted.words.total():
        return f"such as {example!r}"
    word, twin = next(iter(twins.items()))
    return f"such as {word!r} for {twin!r}: they differ in case or blanks; write them as in the training data"


def _plain(word: str) -> str:
    return " ".join(word.split()).casefold()


def _share(count: int, total: int) -> str:
    return f"{count:,} of {total:,} values ({count / total:.0%})"


def _exceeds(count: int, total: int, usual: float, *, is_sample: bool) -> bool:
    """Whether a count is more than 1 %, and more than usual.

    Where chance may explain it, as the training had such values or the rows are a sample of its files, it is also more
    than chance explains (a bound by Chernoff).
    """
    share = count / max(1, total)
    if share <= max(_SHARE, usual):
        return False
    if not usual and not is_sample:
        return True
    usual = min(max(_SHARE, usual), 1 - 1e-9)
    distance = share * math.log(share / usual)
    if share < 1:
        distance += (1 - share) * math.log((1 - share) / (1 - usual))
    return total * distance > -math.log(_CHANCE)


def _vocabulary(feature: Feature) -> list[Any]:
    if isinstance(feature.vocabulary, tuple):
        return [*feature.vocabulary]
    assert feature.vocabulary is not None
    return feature_spec.listed(feature.vocabulary, feature.dtype.name)


def _classes(rows: PreparedRows, label: str) -> dict[int, int]:
    """The class numbers of rows, and how many rows have each."""
    found: Counter[int] = Counter()
    for batch in _batches(rows):
        for each in pc.value_counts(batch.column(label)).to_pylist():
            found[int(each["values"])] += each["counts"]
    return dict(sorted(found.items()))


def _count(
    rows: PreparedRows,
    features: Mapping[str, Feature],
    known: Mapping[str, Mapping[str, Any]],
    skipped: Collection[int] = (),
) -> dict[str, _Counted]:
    """The counts of features with a vocabulary, and of floats."""
    counts: dict[str, _Counted] = {}
    vocabularies: dict[str, pa.Array] = {}
    for name, feature in features.items():
        if feature.vocabulary is not None:
            counts[name] = _Counted()
            vocabularies[name] = pa.array(_vocabulary(feature))
        elif feature.dtype == tf.float32:
            counts[name] = _Counted()
    first = 0
    for batch in _batches(rows):
        kept: np.ndarray = np.ones(batch.num_rows, bool)
        kept[[number - first for number in skipped if first <= number < first + batch.num_rows]] = False
        first += batch.num_rows
        if not kept.all():
            batch = batch.filter(pa.array(kept))
        for name, counted in counts.items():
            values = batch.column(name)
            while is_list(values.type):
                values = values.flatten()
            if name in vocabularies:
                _add_words(counted, values, vocabularies[name])
            else:
                _add_numbers(counted, values.to_numpy(zero_copy_only=False), features[name], known.get(name, {}))
    return counts


def _batches(rows: PreparedRows) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(rows.path) as stream:
        file = ipc.open_file(stream)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def _add_words(counted: _Counted, values: pa.Array, vocabulary: pa.Array) -> None:
    is_known = pc.is_in(values, value_set=vocabulary.cast(values.type))
    counted.num_values += len(values)
    unknown = values.filter(pc.invert(is_known))
    counted.unknown += len(unknown)
    if len(unknown) and len(counted.words) < _LISTED:
        for each in pc.value_counts(unknown).slice(0, _LISTED).to_pylist():
            word = each["values"]
            shown = word.decode(errors="replace") if isinstance(word, bytes) else word
            counted.words[shown] += each["counts"]


def _add_numbers(counted: _Counted, values: np.ndarray, feature: Feature, known: Mapping[str, Any]) -> None:
    numbers = values[~np.isnan(values)]
    counted.missing += len(values) - len(numbers)
    counted.num_values += len(numbers)
    if not len(numbers):
        return
    counted.least = min(counted.least, float(numbers.min()))
    counted.most = max(counted.most, float(numbers.max()))
    if len(feature.boundaries) > 1:
        counted.low += int((numbers <= feature.boundaries[1]).sum())
    if "least" not in known:
        return
    outside = numbers[(numbers < known["least"]) | (numbers > known["most"])]
    counted.outside += len(outside)
    if len(outside) and counted.example is None:
        counted.example = float(outside[0])
    least, most = _rounded(known)
    for factor in _FACTORS:
        scaled = outside * factor
        counted.scaled[factor] += int(((scaled >= least) & (scaled <= most)).sum())
