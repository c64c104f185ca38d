"""`psrun data inspect`: the content of columns of files, and proposed features, as YAML to edit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from psrun.config import schema
from psrun.data import feature_spec, files, formats, profiles, proposals
from psrun.data.profiles import Profile
from psrun.data.proposals import Proposal
from psrun.errors import ConfigError, DataError
from psrun.files import write_atomic
from psrun.results.console import warner
from psrun.results.tables import feature_table

_CLASSES = 100  # largest integer label that is more likely a class than a number


def run(
    console: Console,
    *,
    names: Sequence[str],
    label: str | None,
    weight: str | None,
    write: Path | None,
    format: str | None,
    delimiter: str | None,
    encoding: str,
) -> None:
    """Shows one row per column, and optionally writes a choice of the group `data`.

    Args:
      names: files, folders or patterns.
      label, weight: the columns that are not features.
      write: a new file.

    Raises:
      ConfigError: there is no such column, the files name none, the weights are not numbers, or there is a file at
        `write`.
      DataError: the files cannot be read, or differ in their columns.
    """
    if write is not None and write.exists():
        raise ConfigError(f"{write} exists; choose another name for --write")
    delimiter = formats.TAB if delimiter == r"\t" else delimiter
    if wrong := list(formats.problems(delimiter, None, encoding)):
        raise ConfigError(wrong)
    paths = [file for name in names for file in files.find(name)]
    form = format or formats.of(paths)
    if form == "tfrecord":
        raise ConfigError("TFRecord files have no schema, because records may differ; write data.features yourself")
    layout = formats.Layout(form, delimiter or formats.TEXT.get(form, ","), encoding=encoding)
    columns = formats.columns(paths[0], layout) or ()
    hint = (
        formats.delimiter_hint(paths[0], layout, label, command=True)
        if label not in columns and len(columns) < 2
        else ""
    )
    if hint or (label is not None and label not in columns):
        missing = f"{paths[0]} has no column {label!r}." if label else f"{paths[0]} has one column, {columns[0]!r}."
        raise ConfigError(missing + (hint or schema.did_you_mean(str(label), columns)))
    looked = profiles.of_files(paths, layout, cache=files.cache(), tell=lambda text: None)
    proposed = proposals.of(looked.values(), (label, weight), name=paths[0])
    num_rows = max((each.num_rows for each in looked.values()), default=0)
    if not num_rows:
        raise DataError(f"{paths[0]} has no rows")
    _check_weight(weight, label, paths[0], looked)
    title = f"{num_rows:,} rows of {paths[0]}" + (f" and {len(paths) - 1} more files" if len(paths) > 1 else "")
    console.print(feature_table([each.row(name) for name, each in proposed.items()], title))
    bad = next(iter(looked.values()))
    if bad.num_bad:
        rows = "row is" if bad.num_bad == 1 else "rows are"
        message = f"{bad.num_bad:,} malformed {rows} not counted; the first is {bad.first_bad}"
        warner(console)(f"{message}. A run fails there; set data.max_bad_rows={bad.num_bad} to skip them")
    if label is not None:
        options = ", ".join(f"{key}={value}" for key, value in _task(looked[label]).items())
        console.print(f"label {label}: {looked[label].num_values:,} values, {options}", soft_wrap=True)
    if weight is not None:
        _show_weight(console, looked[weight])
    if write is not None:
        where = {"path": _pattern(names, paths), "label": label or schema.MISSING}
        where |= {} if weight is None else {"weight": weight}
        _write(write, proposed, {**where, **_how(layout, format), **(_task(looked[label]) if label else {})})
        console.print(_advice(write), soft_wrap=True)


def _check_weight(weight: str | None, label: str | None, name: str, columns: Mapping[str, Profile]) -> None:
    if weight is None:
        return
    if weight not in columns:
        raise ConfigError(f"{name} has no column {weight!r}.{schema.did_you_mean(weight, columns)}")
    if weight == label:
        raise ConfigError(f"{weight!r} is the label; choose another column for --weight")
    if columns[weight].kind not in ("integers", "numbers"):
        raise ConfigError(f"column {weight!r} of {name} does not hold numbers; choose another column for --weight")


def _show_weight(console: Console, weight: Profile) -> None:
    console.print(f"weight {weight.column}: {weight.least:g} to {weight.most:g}", soft_wrap=True)
    missing, negative = weight.num_missing, (weight.least or 0) < 0
    if missing or negative:
        what = " and ".join([f"{missing:,} missing weights"] * bool(missing) + ["negative weights"] * negative)
        warner(console)(
            f"column {weight.column} has {what}; a run fails at such rows, or skips up to data.max_bad_rows"
        )


def _task(label: Profile) -> dict[str, Any]:
    """The options of `data` for a label."""
    if label.kind == "strings":
        binary = len(label.values) == 2
        task = {"task": "binary"} if binary else {"task": "multiclass", "num_classes": label.num_values}
        return {**task, "label_vocabulary": list(label.values)}
    values = set(label.values)
    if values and values <= {0, 1}:
        return {"task": "binary"}
    if label.kind == "integers" and len(values) <= _CLASSES and values == set(range(len(values))):
        return {"task": "multiclass", "num_classes": len(values)}
    return {"task": "regression"}


def _how(layout: formats.Layout, format: str | None) -> dict[str, Any]:
    """The options of `data` that are needed to read the files."""
    options = {"format": format} if format else {}
    if layout.format in formats.TEXT and layout.delimiter != formats.TEXT[layout.format]:
        options["delimiter"] = layout.delimiter
    return options if layout.encoding == "utf-8" else {**options, "encoding": layout.encoding}


def _pattern(names: Sequence[str], paths: Sequence[str]) -> str:
    """A name or pattern for exactly these files; "???", a required value, if there is none."""
    if len(names) == 1:
        return names[0]
    folder, name = os.path.split(paths[0])
    pattern = os.path.join(folder, "*" + "".join(Path(name).suffixes))
    return pattern if files.find(pattern) == sorted(paths) else schema.MISSING


def _write(path: Path, proposed: Mapping[str, Proposal], keys: Mapping[str, Any]) -> None:
    lines = ["# Features proposed by psrun data inspect: edit them, and remove those that the model should not use."]
    lines += ["defaults:", "  - table", "  - _self_"]
    lines += [f"{key}: {_flow(value)}" for key, value in keys.items()]
    lines.append("features:")
    for name, each in proposed.items():
        notes = (f"{each.profile.num_values:,} values", each.examples, f"{each.missing} missing" * bool(each.missing))
        comment = " ".join("; ".join(filter(None, (*notes, each.note))).split())  # a line feed would end the comment
        if each.feature is None:
            lines.append(f"  # {_flow(name)}: omitted: {each.note}")
        else:
            options = feature_spec.options(each.feature)
            if options.get("column") == name:
                del options["column"]
            lines.append(f"  {_flow(name)}: {_flow(options)}  # {comment}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error


def _flow(value: Any) -> str:
    """YAML on one line; text that looks like a reference of OmegaConf is escaped."""
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").replace("${", r"\${")


def _advice(path: Path) -> str:
    """The command that uses the written file."""
    if path.parent.name == "data" and path.suffix == ".yaml":
        return f"written to {path}: psrun --config-dir {path.parent.parent} data={path.stem} model=wide_deep"
    target = Path("FOLDER", "data", f"{path.stem}.yaml")
    return f"written to {path}; move it to {target} and run psrun --config-dir FOLDER data={path.stem} model=wide_deep"
