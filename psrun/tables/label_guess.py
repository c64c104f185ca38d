"""The task of a label, guessed from its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from psrun.errors import ConfigError, Problem
from psrun.tables import notations
from psrun.tables.profiles import Profile

_FIRST_WORDS = {
    "no", "n", "false", "f", "0", "negative", "neg", "off", "never", "absent", "inactive", "none", "bad", "-1", "-",
}  # fmt: skip
_SECOND_WORDS = {
    "yes", "y", "true", "t", "1", "positive", "pos", "on", "always", "present", "active", "good", "+1", "+",
}  # fmt: skip
_KEYS = {".": "data.decimal_mark=.", ",": "'data.decimal_mark=\",\"'"}  # as a shell takes them
_INT64 = 2**63
FEW_CLASSES = 10
_MOST_CLASSES = 1000
_ROWS_PER_CLASS = 5
_EVEN = 20  # how much more frequent the most frequent of many classes is, at most


@dataclass(frozen=True)
class LabelKeys:
    """The keys of `data` that say what labels and weights are, as `psrun.tables.table.Table` describes them.

    Attributes:
      names: the columns with labels.
      vocabulary: `label_vocabulary`.
    """

    names: tuple[str, ...]
    task: str | None = None
    num_classes: int | None = None
    vocabulary: tuple[str, ...] | tuple[int, ...] | None = None
    weight: str | None = None


@dataclass(frozen=True)
class Label:
    """The proposed task of a label.

    Attributes:
      num_classes: of multiclass.
      label_vocabulary: the values by class; None if they are class numbers, or numbers to predict.
      decimal_mark, unit: how numbers are written, as in `FeatureSpec`.
      num_missing: rows without a label, which are left out.
      note: the task in words, and how to say otherwise.
    """

    task: str
    num_classes: int | None = None
    label_vocabulary: tuple[str, ...] | tuple[int, ...] | None = None
    decimal_mark: str | None = None
    unit: str | None = None
    num_missing: int = 0
    note: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The keys of `data`."""
        options: dict[str, Any] = {"task": self.task}
        if self.num_classes is not None:
            options["num_classes"] = self.num_classes
        if self.label_vocabulary is not None:
            options["label_vocabulary"] = list(self.label_vocabulary)
        return options

    @property
    def record(self) -> dict[str, Any]:
        """What run.json has of the label."""
        record = self.options
        if self.decimal_mark is not None:
            record |= {"decimal_mark": self.decimal_mark, "unit": self.unit}
        return record


def guess(profile: Profile, *, task: str | None = None, num_classes: int | None = None) -> Label:
    """The task of a label, by its values.

    Args:
      task, num_classes: as the configuration says; None: guessed.

    Raises:
      ConfigError: no task fits the values, or they are numbers that no key says how to read.
    """
    label = _guess(profile, task, num_classes)
    how = how_read(profile)
    return replace(label, note=f"{label.note}; {how}") if how else label


def how_read(profile: Profile) -> str:
    """How the text of a label is read; empty if it is no text."""
    if not profile.text:
        return ""
    if profile.kind == "strings":
        return "read as words"
    if profile.decimal_mark is None:
        return "read as plain numbers"
    unit = f" and {profile.unit}" if profile.unit else ""
    return f"read with decimal mark {profile.decimal_mark}{unit} (data.decimal_mark)"


def check(profile: Profile, task: str) -> None:
    """Raises ConfigError if values cannot be what the configuration says of a label."""
    if profile.kind == "strings":
        _check_words(profile, task)
    elif profile.kind in ("integers", "numbers") and task == "binary":
        _check_binary(profile)


def _guess(profile: Profile, task: str | None, num_classes: int | None) -> Label:
    name = profile.column
    if profile.kind == "empty":
        raise _label_error(f"column {name!r} has no label at all; choose another column")
    if profile.kind in ("other", "times") or profile.is_list or profile.width > 1:
        what = {"times": "dates or times", "other": "neither numbers nor words"}.get(profile.kind, "lists")
        raise _label_error(f"column {name!r} holds {what}; choose another column, or add one with numbers or words")
    if profile.kind == "strings":
        return _word_label(profile, task)
    return _number_label(profile, "multiclass" if num_classes is not None else task, num_classes)


def require_two_classes(labels: Mapping[str, Label]) -> None:
    """Raises ConfigError if one of several labels has more than two classes."""
    for name, label in labels.items():
        if len(labels) > 1 and label.task == "multiclass":
            message = (
                f"names {name!r}, which has {label.num_classes} classes; several labels have two each, or are numbers"
            )
            raise ConfigError([Problem("data.label", message)])


def with_units(
    labels: Mapping[str, Label], recorded: Mapping[str, str], unit_of: Callable[[str, str, str], str]
) -> dict[str, Label]:
    """The labels, each with the unit of its numbers; see `feature_spec.with_units`."""
    known = {}
    for name, label in labels.items():
        if label.decimal_mark is not None and label.unit is None and label.label_vocabulary is None:
            unit = recorded.get(name)
            if unit is None:
                unit = unit_of("data.label", name, label.decimal_mark)
            label = replace(label, unit=unit)
        known[name] = label
    return known


def _label_error(message: str, key: str = "data.label") -> ConfigError:
    return ConfigError([Problem(key, message)])


def _check_words(profile: Profile, task: str | None) -> None:
    """Raises ConfigError if words look like numbers or times, unless the user wants classes."""
    if task in ("binary", "multiclass"):
        return
    name = profile.column
    if profile.look == "times" and not profile.odd:
        raise _label_error(f"column {name!r} holds dates or times; choose another column, or add one with numbers")
    if profile.look != "formatted":
        return
    if len(profile.samples) > 1:
        first, second = profile.samples
        raise _label_error(f"column {name!r} has numbers with different units, {first!r} and {second!r}; make them one")
    message = f"is needed for the label {name!r}, which holds no plain numbers"
    if profile.odd:
        message = f"does not fit all numbers of the label {name!r}, such as {profile.odd[0]!r}"
    raise _label_error(f"{message}: {readings(profile.samples[0])}", "data.decimal_mark")


def readings(text: str) -> str:
    """The numbers that a text is with each decimal mark that fits it, in words."""
    by_number: dict[str, list[str]] = {}
    for mark, key in _KEYS.items():
        unit = notations.units(pa.array([text]), mark)[0].as_py()
        if unit is not None:
            number = notations.numbers(pa.array([text]), mark, unit)[0].as_py()
            by_number.setdefault(f"{number:.15g}", []).append(key)
    found = [f"{number} with {' or '.join(keys)}" for number, keys in by_number.items()]
    return f"{text!r} is {' and '.join(found)}"


def _check_binary(profile: Profile) -> None:
    """Raises ConfigError if numbers are more, or fewer, than two classes."""
    count = profile.num_values
    if count > FEW_CLASSES:
        message = f"is binary, but {profile.column} has {count:,} different numbers: data.task=regression"
        raise _label_error(message, "data.task")
    if count > 2:
        message = f"is binary, but {profile.column} has {count} different numbers: data.task=multiclass or regression"
        raise _label_error(message, "data.task")


def _word_label(profile: Profile, task: str | None) -> Label:
    _check_words(profile, task)
    words, num_marked = _classes(profile)
    name = profile.column
    count = len(words)
    num_missing = profile.num_missing + num_marked
    num_rows = profile.num_items - num_missing
    if task == "regression":
        odd = ", ".join(map(repr, profile.odd[:3])) or ", ".join(map(repr, words[:3]))
        raise _label_error(f"is regression, but column {name!r} holds words: {odd}", "data.task")
    if count == 1:
        raise _constant(name, words[0], num_missing)
    if profile.look == "numbers" and count > FEW_CLASSES:
        odd = ", ".join(map(repr, profile.odd[:3]))
        raise _label_error(
            f"column {name!r} holds numbers, except {odd}; remove these rows, or leave their labels empty"
        )
    if not profile.is_exact or count < profile.num_values - num_marked or count > _MOST_CLASSES:
        raise _too_many(profile)
    if count > FEW_CLASSES and task is None and count * _ROWS_PER_CLASS > num_rows:
        raise _too_many(profile)
    if task == "binary" and count != 2:
        raise _label_error(f"is binary, but column {name!r} has {count} different values: {_some(words)}", "data.task")
    if count == 2:
        return _binary(_binary_order(words), num_missing)
    words = sorted(words)
    note = f"{count} classes, {_some(words)}"
    return _label("multiclass", note, num_missing, num_classes=count, label_vocabulary=tuple(words))


def _classes(profile: Profile) -> tuple[list[str], int]:
    """The words of a label without markers of missing values, and the number of rows with such markers."""
    by_word = dict(zip(map(str, profile.values), profile.counts))
    markers = [word for word in by_word if word.strip() in profile.markers]
    others = [word for word in by_word if word not in markers]
    is_pair = {word.strip().lower() for word in others} <= _FIRST_WORDS | _SECOND_WORDS
    if not is_pair or len(others) < 2:
        markers = [word for word in markers if word.strip().lower() not in notations.UNSURE]
    return sorted(by_word.keys() - set(markers)), sum(by_word[word] for word in markers)


def _too_many(profile: Profile) -> ConfigError:
    about = "" if profile.is_exact else "about "
    message = (
        f"column {profile.column!r} has {about}{profile.num_values:,} different words in {profile.num_present:,} rows,"
        f" too many or too rare to be classes (at most {_MOST_CLASSES:,}, with a mean of {_ROWS_PER_CLASS} rows):"
        " choose another label, or group its values"
    )
    return _label_error(message)


def _constant(name: str, value: Any, num_missing: int) -> ConfigError:
    missing = f" and {num_missing:,} rows without a label" if num_missing else ""
    message = (
        f"column {name!r} has one value, {value!r}{missing}: there is nothing to learn from it; choose another column"
    )
    return _label_error(f"{message}, or data.label=null if each row is an interaction and the model needs no label")


def _binary_order(words: Sequence[str]) -> list[str]:
    """The negative word first, where it can be told."""
    first, second = sorted(words)
    plain = [word.strip().lower() for word in (first, second)]
    swapped = (
        (plain[1] in _FIRST_WORDS and plain[0] not in _FIRST_WORDS)
        or (plain[0] in _SECOND_WORDS and plain[1] not in _SECOND_WORDS)
        or _negates(plain[1], plain[0])
    )
    return [second, first] if swapped else [first, second]


def _negates(word: str, other: str) -> bool:
    """Whether a word says that the other is not so: 'no churn', 'not spam', 'inactive'."""
    return any(
        word == f"{prefix}{other}" for prefix in ("no ", "not ", "non-", "non", "un", "in", "not_", "no_", "not-")
    )


def _label(task: str, note: str, num_missing: int, **options: Any) -> Label:
    if num_missing:
        rows = "row without a label is" if num_missing == 1 else "rows without a label are"
        note += f"; {num_missing:,} {rows} left out"
    return Label(task, num_missing=num_missing, note=f"{task}: {note}", **options)


def _binary(vocabulary: Sequence[Any], num_missing: int, **how: Any) -> Label:
    zero, one = vocabulary
    if (zero, one) == (0, 1):
        return _label("binary", "0 and 1", num_missing, **how)
    note = f"{zero} is 0, {one} is 1; 'data.label_vocabulary=[{one},{zero}]' for the other way round"
    return _label("binary", note, num_missing, label_vocabulary=(zero, one))


def _some(values: Sequence[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:4])
    return shown if len(values) <= 4 else f"{shown}, ..."


def _number_label(profile: Profile, task: str | None, num_classes: int | None) -> Label:
    name = profile.column
    num_missing = profile.num_missing
    if profile.num_values == 1:
        raise _constant(name, profile.least if profile.least is not None else profile.values[0], num_missing)
    how = {"decimal_mark": profile.decimal_mark, "unit": profile.unit}
    if task == "binary":
        _check_binary(profile)
    numbers = _class_numbers(profile)
    if task == "regression" or (task is None and not _are_classes(profile, numbers)):
        note = f"{profile.num_values:,} different numbers"
        if task is None and numbers is not None and len(numbers) <= _MOST_CLASSES:
            note += "; data.task=multiclass to treat them as classes"
        return _label("regression", note, num_missing, **how)
    if numbers is None or len(numbers) > _MOST_CLASSES:
        message = f"is {task}, but column {name!r} has {profile.num_values:,} different numbers, which are no classes"
        raise _label_error(f"{message}: set data.task=regression", "data.task")
    values = sorted(numbers)
    vocabulary: Sequence[Any] = _written(profile, values)
    is_range = num_classes is not None and min(values) >= 0 and max(values) < num_classes
    if len(values) == 2 and task != "multiclass":
        return _binary(values if values == [0, 1] else vocabulary, num_missing, **how)
    count = num_classes if num_classes is not None and is_range else len(values)
    is_plain = is_range or vocabulary == list(range(count))
    note = f"{count} classes, {f'0 to {count - 1}' if is_plain else _some(vocabulary)}"
    note += "; data.task=regression to predict the number"
    names = None if is_plain else tuple(vocabulary)
    return _label("multiclass", note, num_missing, num_classes=count, label_vocabulary=names)


def _class_numbers(profile: Profile) -> dict[int, int] | None:
    """The number of rows of each whole number; None if there are fractions, or too many numbers."""
    if not profile.whole or not profile.is_exact or not profile.values or profile.unit:
        return None
    counts: dict[int, int] = {}
    for value, count in zip(profile.values, profile.counts):
        number = int(value) if profile.kind == "integers" else int(_number(value, profile))
        counts[number] = counts.get(number, 0) + count
    return counts if len(counts) == profile.num_values else None


def _number(value: Any, profile: Profile) -> float:
    if not isinstance(value, str):
        return value
    return notations.numbers(pa.array([value]), profile.decimal_mark)[0].as_py()


def _written(profile: Profile, numbers: Sequence[int]) -> list[Any]:
    """The numbers as the files have them: text such as 1.0 does not equal an integer, and no int64 is beyond 2^63."""
    if profile.kind == "numbers" and profile.text and len(profile.values) == len(numbers):
        return sorted(profile.values, key=lambda text: _number(text, profile))
    if max(-numbers[0] - 1, numbers[-1]) >= _INT64:
        return list(map(str, numbers))
    return list(numbers)


def _are_classes(profile: Profile, numbers: Mapping[int, int] | None) -> bool:
    """Whether numbers are rather classes than amounts: few, or counted from 0 or 1 and about equally frequent."""
    if numbers is None:
        return False
    count = len(numbers)
    if count == 2:
        return True
    if count * _ROWS_PER_CLASS > profile.num_present:
        return False
    if count <= FEW_CLASSES:
        return True
    dense = min(numbers) in (0, 1) and max(numbers) - min(numbers) + 1 == count
    return dense and count <= _MOST_CLASSES and max(numbers.values()) <= _EVEN * min(numbers.values())
