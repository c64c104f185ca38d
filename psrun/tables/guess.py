"""What the training files of a table tell where the configuration says nothing: labels, features, units of numbers.

What the configuration says is checked against the files here, too: labels of another task, numbers with two readings.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import types

from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import contents, decimal_marks, formats, label_guess, preparation, profiles, proposals, splits
from psrun.tables.columns import ColumnSpec
from psrun.tables.feature_spec import FeatureSpec
from psrun.tables.label_guess import Label, LabelKeys
from psrun.tables.notations import Notation
from psrun.tables.profiles import Profile
from psrun.tables.rows import Layout, Rows


@dataclass(frozen=True)
class TrainingFiles:
    """The training files. Their rows are read when somebody first asks for a profile, and once.

    Attributes:
      columns: names of the columns, which all files have; None if each record has its own.
      labels: the columns with labels.
      options: of the preparation: malformed rows, the cache, and whom to tell of the progress.
    """

    names: Sequence[str]
    layout: Layout
    columns: Sequence[str] | None
    labels: Sequence[str]
    notation: Notation
    options: preparation.Options

    @property
    def first(self) -> str:
        return self.names[0]

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The profile of each column over all rows.

        Raises:
          DataError: a file cannot be read, has other columns than the first, or too many malformed rows; or no file has
            a row.
        """
        return self._profiles_and_rows[0]

    @property
    def rows(self) -> Mapping[str, Sequence[Rows]]:
        """By file, the rows that `profiles` has kept in memory; none before they were read."""
        if not self.are_profiled:
            return {}
        return self._profiles_and_rows[1]

    @property
    def are_profiled(self) -> bool:
        """Whether all rows were read."""
        return "_profiles_and_rows" in vars(self)

    @functools.cached_property
    def first_profiles(self) -> Mapping[str, Profile]:
        """The profile of each column over the first rows."""
        return profiles.profile_first_rows(self.names, self.layout)

    @functools.cached_property
    def _profiles_and_rows(self) -> tuple[dict[str, Profile], dict[str, list[Rows]]]:
        kept: dict[str, list[Rows]] = {}
        found = profiles.profile_files(
            self.names,
            self.layout,
            cache=preparation.cache_folder(self.options.cache),
            notation=self.notation,
            labels=self.labels,
            keep=kept,
            tell=self.options.tell,
        )
        some = next(iter(found.values()))  # all have the same number of rows
        preparation.check_bad(some.num_bad, [some.first_bad], self.options.max_bad_rows)
        if not some.num_rows:
            raise DataError(f"there is no row in {self.first} to infer the features from")
        return found, kept


@dataclass(frozen=True)
class Labels:
    """The labels of a table by name, and warnings about their values."""

    by_name: Mapping[str, Label]
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.by_name)

    @property
    def single(self) -> Label | None:
        """The label, if there is one and no other."""
        if len(self.by_name) != 1:
            return None
        return self.by_name[self.names[0]]

    @property
    def tasks(self) -> dict[str, str]:
        return {name: label.task for name, label in self.by_name.items()}

    @property
    def to_regress(self) -> list[str]:
        """The names of the labels that are numbers to predict."""
        return [name for name, task in self.tasks.items() if task == "regression"]

    @property
    def of_classes(self) -> str | None:
        """The name of the label, if there is no other one and it has classes."""
        if self.single is None or self.single.task == "regression":
            return None
        return self.names[0]

    @property
    def vocabularies(self) -> dict[str, tuple[str, ...] | tuple[int, ...]]:
        """The names of the classes 0, 1, ... by label, of the labels whose classes have names."""
        found: dict[str, tuple[str, ...] | tuple[int, ...]] = {}
        for name, label in self.by_name.items():
            if label.label_vocabulary is not None:
                found[name] = label.label_vocabulary
        return found

    @property
    def class_names(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """The names of the classes of the single label; None without names."""
        if self.single is None:
            return None
        return self.single.label_vocabulary


@dataclass(frozen=True)
class Features:
    """The features of a table.

    Attributes:
      specs: by name.
      guessed: a row for each guessed feature, to display (see `proposals.Proposal.row`); none if the configuration or
        the run describes them.
      notes, warnings: about the guess.
    """

    specs: Mapping[str, FeatureSpec]
    guessed: Sequence[dict[str, Any]] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def labels(files: TrainingFiles, keys: LabelKeys, recorded: Mapping[str, Any]) -> Labels:
    """The labels as the configuration or the run describes them, or else as their values are.

    Args:
      recorded: the facts of the run; empty for a new run.

    Raises:
      ConfigError: values are no labels, several labels have more than two classes, or numbers have two readings or
        several units.
      DataError: see `TrainingFiles.profiles`.
    """
    found: dict[str, Label] = {}
    warnings: list[str] = []
    for name in keys.names:
        label = _described_label(name, keys, recorded, files.notation)
        if label is None:
            label = _guessed_label(name, files, keys)
            warnings += _spelling_warnings(name, files)
        found[name] = label
    label_guess.require_two_classes(found)
    unit_of = functools.partial(unit, files)
    return Labels(label_guess.with_units(found, recorded.get("units", {}), unit_of), tuple(warnings))


def _described_label(name: str, keys: LabelKeys, recorded: Mapping[str, Any], notation: Notation) -> Label | None:
    """A label as the configuration or the run describes it; None if neither does."""
    task = keys.task
    if task is None:
        known = _recorded_label(name, keys, recorded)
        if known is not None:
            return _as_recorded(known, keys)
        if keys.vocabulary is not None:
            task = "binary" if len(keys.vocabulary) == 2 else "multiclass"
    if task is None:
        return None
    num_classes = keys.num_classes
    if task == "multiclass" and num_classes is None and keys.vocabulary is not None:
        num_classes = len(keys.vocabulary)
    return Label(task, num_classes, keys.vocabulary, notation.decimal_mark)


def _recorded_label(name: str, keys: LabelKeys, recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the run recorded of a label (`Label.record`); None if it recorded nothing."""
    if len(keys.names) == 1:
        return recorded.get("label")
    return recorded.get("labels", {}).get(name)


def _as_recorded(known: Mapping[str, Any], keys: LabelKeys) -> Label:
    """The label of a record; a vocabulary in the configuration takes the place of the recorded one."""
    vocabulary = None
    if keys.vocabulary:
        vocabulary = keys.vocabulary
    elif known.get("label_vocabulary") is not None:
        vocabulary = tuple(known["label_vocabulary"])
    return Label(
        known["task"],
        known.get("num_classes"),
        vocabulary,
        decimal_mark=known.get("decimal_mark"),
        unit=known.get("unit"),
    )


def _guessed_label(name: str, files: TrainingFiles, keys: LabelKeys) -> Label:
    if files.columns is None:
        return Label("binary")
    decimal_marks.check(files.profiles, [name], files.layout)
    return label_guess.guess(files.profiles[name], task=keys.task, num_classes=keys.num_classes)


def _spelling_warnings(name: str, files: TrainingFiles) -> list[str]:
    """What a user should know about a guessed label of words: one class in several spellings."""
    if files.columns is None:
        return []
    profile = files.profiles[name]
    if profile.kind != "strings" or not profile.spellings:
        return []
    return [contents.spelling_warning(f"label {name}", profile.spellings)]


def features(files: TrainingFiles, keys: LabelKeys, num_buckets: int | None, exclude: Collection[str] = ()) -> Features:
    """The features that the columns of the files seem to be.

    Args:
      num_buckets, exclude: see `psrun.tables.table.Table`.

    Raises:
      ConfigError: no column is a feature, the label cannot have the task of the configuration, or numbers have two
        readings.
      DataError: see `TrainingFiles.profiles`.
    """
    if files.columns is None:
        message = "is required for TFRecord files, whose records have no schema"
        raise ConfigError([Problem("data.features", message)])
    notes: list[str] = []
    if keys.task is not None and not keys.vocabulary:
        notes += _checked_label(keys.names[0], files, keys.task)
    indexes = formats.index_columns(files.names, files.layout)
    proposed = proposals.propose(files.profiles.values(), (*keys.names, keys.weight), indexes, exclude)
    used = [each.profile.column for each in proposed.values() if each.feature is not None]
    decimal_marks.check(files.profiles, used, files.layout)
    specs = proposals.features(proposed, num_buckets)
    if not specs:
        message = f"cannot be inferred: {proposals.nothing_left(proposed, files.notation)}"
        raise ConfigError([Problem("data.features", message)])
    index_note = proposals.index_note(proposed)
    if index_note:
        notes.append(index_note)
    warnings = [*proposals.warnings(proposed, files.notation), *proposals.leak_warnings(proposed)]
    shown = [each.row(name) for name, each in proposed.items()]
    return Features(specs, shown, tuple(notes), tuple(warnings))


def _checked_label(name: str, files: TrainingFiles, task: str) -> list[str]:
    """A note on how the text of a label is read, if it is text.

    Raises:
      ConfigError: the label cannot have the task of the configuration, or its numbers have two readings.
    """
    decimal_marks.check(files.profiles, [name], files.layout)
    label_guess.check(files.profiles[name], task)
    how = label_guess.how_read(files.profiles[name])
    if not how:
        return []
    return [f"label {name}: {task}; {how}"]


def check_numbers(files: TrainingFiles, specs: Mapping[str, ColumnSpec], split: splits.SplitSpec) -> None:
    """Checks the columns that a new run reads as plain numbers.

    Of a configuration that describes all of them, the first rows of the files decide whether to look at all rows, and
    the first rows of these columns whether to look at the other columns, which may be many.

    Args:
      specs: of features, labels and weights.

    Raises:
      ConfigError: a column has two readings, or a binary label many numbers.
    """
    if files.columns is None:
        return
    _check_times(files, split)
    if not files.are_profiled and _are_clear(files, specs):
        return
    if not files.are_profiled:
        try:
            _check_columns(files.first_profiles, specs, files.layout)
            return
        except ConfigError:
            pass  # all rows decide
    _check_columns(files.profiles, specs, files.layout)


def _check_times(files: TrainingFiles, split: splits.SplitSpec) -> None:
    """Raises ConfigError if numbers by which a split orders rows have two readings: it reads plain ones."""
    if split.by not in ("time", "last") or split.time_format is not None or not files.layout.is_text:
        return
    assert split.column is not None
    if files.notation.decimal_mark is None:
        decimal_marks.check(files.first_profiles, [split.column], files.layout)
    text = files.first_profiles[split.column].two_ways
    if files.notation.decimal_mark == "," and text is not None:
        message = f"{split.column} has {text!r}, which a split reads with a decimal point; write it without separators"
        raise ConfigError([Problem(f"{splits.KEY}.column", message)])


def _are_clear(files: TrainingFiles, specs: Mapping[str, ColumnSpec]) -> bool:
    """Whether `_check_columns` accepts the first rows of the files, by the columns that it checks alone.

    It asks the other columns only about a number that has two readings.
    """
    assert files.columns is not None
    checked = _checked(specs, files.columns)
    if not checked:
        return True
    columns = [*dict.fromkeys(spec.column for spec in checked)]
    looked = profiles.profile_first_rows(files.names, files.layout, columns)
    for spec in checked:
        profile = looked[spec.column]
        if profile.two_ways is not None or _has_many_labels(profile, spec):
            return False
    return True


def _checked(specs: Mapping[str, ColumnSpec], columns: Collection[str]) -> list[ColumnSpec]:
    """The columns that are read as plain numbers, of those that the files have."""
    checked = []
    for spec in specs.values():
        if spec.column in columns and spec.dtype == "float32" and spec.vocabulary is None:
            checked.append(spec)
    return checked


def _has_many_labels(profile: Profile, spec: ColumnSpec) -> bool:
    """Whether a binary label has more values than a column of classes."""
    return spec.is_label and spec.num_classes == 2 and profile.num_values > label_guess.FEW_CLASSES


def _check_columns(looked: Mapping[str, Profile], specs: Mapping[str, ColumnSpec], layout: Layout) -> None:
    for spec in _checked(specs, looked):
        if spec.part is None and spec.decimal_mark is None:
            decimal_marks.check(looked, [spec.column], layout)
        if _has_many_labels(looked[spec.column], spec):
            label_guess.check(looked[spec.column], "binary")


def unit(files: TrainingFiles, key: str, column: str, decimal_mark: str) -> str:
    """The unit of a column; empty for none.

    Raises:
      ConfigError: it has several; names the key.
      DataError: see `TrainingFiles.profiles`.
    """
    if files.columns is None or column not in files.columns or not _may_be_text(files, column):
        return ""
    units = files.profiles[column].units.get(decimal_mark, {})
    if len(units) > 1:
        values = " and ".join(map(repr, units.values()))
        message = f"must be set: column {column!r} has {values}; rows with another unit are malformed then"
        raise ConfigError([Problem(key, message)])
    return next(iter(units), "")


def _may_be_text(files: TrainingFiles, column: str) -> bool:
    schema = formats.schema([files.first], files.layout)
    assert schema is not None
    kind = schema.field(column).type
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return not is_number
