"""The generated pages of the documentation site: from README, conf/, docstrings and --help."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from psrun import errors
from psrun import parts as offers
from psrun.cli import command_line
from psrun.config import groups as files
from psrun.runs.completion import help_of, parts_of

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
_PAGE_OF = {
    "experiments": "reference/groups/experiment.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "psrun/errors.py": "reference/errors.md",
}
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!https?:|#)([^)]+)\)")


def pages() -> dict[str, str]:
    """The text of each generated page by its path within docs/."""
    return {
        "index.md": _linked((ROOT / "README.md").read_text(encoding="utf-8")),
        "contributing.md": _linked((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")),
        **{f"reference/groups/{name}.md": _group(name) for name in groups()},
        "reference/index.md": _index(),
        "reference/keys.md": _keys(),
        "reference/commands.md": _commands(),
        "reference/errors.md": _errors(),
        "reference/changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }


def groups() -> list[str]:
    """The groups in the order of the defaults list in conf/config.yaml."""
    folders = {path.parent.name for path in CONF.glob("*/*.yaml")}
    ordered = re.findall(r"^  - (\w+):", (CONF / "config.yaml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [*(name for name in ordered if name in folders), *sorted(folders.difference(ordered))]


def choices(group: str) -> list[Path]:
    """The files of the choices of a group, of psrun and of other packages."""
    return sorted(files.choices_of(group, ["-sc"]).values(), key=lambda path: path.name)


def _linked(text: str) -> str:
    """Points links to files of the repository to their pages. A file without a page keeps only its name."""

    def page(link: re.Match[str]) -> str:
        text, target = link.groups()
        if target.startswith("docs/"):
            return f"[{text}]({target})"
        return f"[{text}]({_PAGE_OF[target]})" if target in _PAGE_OF else f"`{text}`"

    return _LINK.sub(page, text).replace("](docs/", "](")


def linked_page(text: str, path: str) -> str:
    """Points links of a page of docs/ to files of the repository outside of docs/ to the pages of these files.

    In the repository, the page links to the files.

    Args:
      path: of the page within docs/.
    """
    folder = os.path.dirname(path)

    def page(link: re.Match[str]) -> str:
        title, target = link.groups()
        file, _, anchor = target.partition("#")
        within = os.path.normpath(os.path.join("docs", folder, file))
        if within.startswith("docs/"):
            return link[0]
        found = _page_of(within)
        if found is None:
            return f"`{title}`"
        found, _, own = found.partition("#")
        anchor = own or anchor
        return f"[{title}]({os.path.relpath(found, folder)}{'#' + anchor if anchor else ''})"

    return _LINK.sub(page, text)


def _page_of(file: str) -> str | None:
    """The page of a file of the repository; None if it has none."""
    choice = re.fullmatch(r"conf/(\w+)/(\w+)\.yaml", file)
    if choice is not None:
        return f"reference/groups/{choice[1]}.md#{choice[2]}"
    return _PAGE_OF.get(file)


def _group(name: str) -> str:
    paths = choices(name)
    listed = "\n".join(f"- [`{name}={path.stem}`](#{path.stem}) {files.description(path)}" for path in paths)
    return "\n\n".join([f"# {name}", listed, *(_choice(name, path) for path in paths)])


def _choice(group: str, path: Path) -> str:
    comment, body = _split(path.read_text(encoding="utf-8"))
    target = re.search(r"^_target_: (psrun\.\S+)$", body, flags=re.MULTILINE)
    parts = [f"## {path.stem} {{ #{path.stem} }}", _prose(comment), _code(body, "yaml", f"conf/{group}/{path.name}")]
    return "\n\n".join([*parts, *([f"::: {target[1]}"] if target else [])])


def _split(text: str) -> tuple[list[str], str]:
    """The lines of the comment at the head of a file, and what comes after."""
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return [re.sub(r"^# ?", "", line) for line in lines[:end]], "\n".join(lines[end:]).strip()


def _prose(lines: list[str]) -> str:
    """Text; what is indented is code."""
    blocks: list[list[str]] = []
    for line in lines:
        code = line.startswith("  ")
        if blocks and (not line or code == blocks[-1][0].startswith("  ")):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    texts = ("\n".join(block).rstrip() for block in blocks)
    return "\n\n".join(_code(block, "text") if block.startswith("  ") else block for block in texts)


def _code(text: str, language: str, title: str = "") -> str:
    indent = min((len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()), default=0)
    flat = "\n".join(line[indent:] for line in text.splitlines())
    return f"```{language}" + (f' title="{title}"' if title else "") + f"\n{flat}\n```"


def _index() -> str:
    listed = "\n".join(f"- [`{name}`](groups/{name}.md)" for name in groups())
    return f"""# Reference

- [Error messages](messages.md): cause and remedy
- [All keys](keys.md): what each key does, its default, an example
- [Run folder and exit codes](run-folder.md), [error types](errors.md)
- [Commands](commands.md): `psrun report`, `watch` and others
- [Glossary](glossary.md): the words of these pages
- [Changelog](changelog.md)

The groups and their choices:

{listed}"""


class Key(NamedTuple):
    """A key in a file of conf/: its dotted name, its default as written, and its comment."""

    name: str
    default: str
    comment: str


_KEY = re.compile(r"(?P<indent> *)(?P<name>\w+):(?: +(?P<value>[^#\s](?:[^#]|(?<=\S)#)*?))?(?: +# (?P<comment>.*)| *)$")


def keys_of(text: str, prefix: str = "") -> list[Key]:
    """The keys of a YAML text in order, with the comments beside them; without Hydra's own and `_target_`."""
    keys: list[Key] = []
    above: list[tuple[int, str]] = []
    for line in text.partition("\nhydra:\n")[0].splitlines():
        found = _KEY.match(line)
        if found is None:
            more = re.match(r" +# (.*)", line)
            if more and keys:
                keys[-1] = keys[-1]._replace(comment=f"{keys[-1].comment} {more[1].strip()}".strip())
            continue
        indent = len(found["indent"])
        above = [(depth, name) for depth, name in above if depth < indent]
        name = ".".join([*(name for _, name in above), found["name"]])
        above.append((indent, found["name"]))
        if above[0][1] not in ("defaults", "_target_") and (found["value"] or found["comment"]):
            keys.append(Key(prefix + name, (found["value"] or "").strip(), found["comment"] or ""))
    return keys


def _keys() -> str:
    text = (CONF / "config.yaml").read_text(encoding="utf-8")
    _, body = _split(text.partition("\nhydra:\n")[0])
    parts = ["# All keys", "## Keys without a group", _code(body, "yaml", "conf/config.yaml")]
    parts += [_key([("", key)]) for key in keys_of(text)]
    for group in groups():
        if group == "experiment":
            continue
        found: dict[str, list[tuple[str, Key]]] = {}
        for path in choices(group):
            text = path.read_text(encoding="utf-8")
            package = re.match(r"# @package (\S+)", text)  # where its keys are
            prefix = "" if package and package[1] == "_global_" else f"{package[1] if package else group}."
            for key in keys_of(text, prefix):
                found.setdefault(key.name, []).append((path.stem, key))
        if group == "model":
            for key in keys_of((CONF / "model_keys.yaml").read_text(encoding="utf-8"), "model."):
                found.setdefault(key.name, []).append(("", key))
        parts += [
            f"## {group}",
            *(_key(same, group) for name, same in sorted(found.items()) if not name.endswith(".kind")),
        ]
    return "\n\n".join(parts)


def _key(same: list[tuple[str, Key]], group: str = "") -> str:
    """The section of a key: its description, its defaults by choice, an example and links to the choices."""
    key = max((key for _, key in same), key=lambda key: len(key.comment))
    defaults: dict[str, list[str]] = {}
    for choice, each in same:
        defaults.setdefault(each.default, []).append(f"[{choice}](groups/{group}.md#{choice})" if choice else "")
    listed = [
        (f"`{default}`" if default else "several keys") + (f" ({', '.join(where)})" if all(where) else "")
        for default, where in defaults.items()
    ]
    example = _example(key)
    parts = [f"### {key.name}", _sentence(key.comment), f"Default: {'; '.join(listed)}."]
    if key.name == "model.metrics":
        parts.append(_metrics_of_parts())
    return "\n\n".join([*(part for part in parts if part), *([_code(example, "bash")] if example else [])])


def _metrics_of_parts() -> str:
    """The metrics of lists, of psrun and of other packages; K is a number."""
    names = ", ".join(f"`{name}`" for name in offers.metrics())
    return f"Metrics of lists (`K` is a length, such as 10): {names}."


def _sentence(comment: str) -> str:
    """The comment as text. Its first word may be a value, so that it stays in lower case."""
    return f"{comment.rstrip('.')}." if comment else ""


def _example(key: Key) -> str:
    """A command that sets the key to a value that its comment names, or to its default."""
    named = re.search(r"(?:such as|as in) (\[[^]]*\]|\{[^}]*\}|[\w.]*\w)", key.comment)
    listed = re.match(r"(\w+) \| (\w+)", key.comment)
    other = next((value for value in (listed.groups() if listed else ()) if value != key.default), None)
    value = named[1] if named else other or key.default
    if value in ("", "null", "???"):
        return ""
    argument = f"{key.name}={value}"
    return "psrun " + (argument if re.fullmatch(r"[\w.=/~:-]+", argument) else f"'{argument}'")


@mock.patch.dict(os.environ, COLUMNS="80")  # as wide as argparse makes its help
def _commands() -> str:
    parts = ["# Commands"]
    for word in command_line.command_words():
        command = command_line.find_command(word)
        text = help_of(command)
        parts += [f"## psrun {word}", _code(text, "text")]
        for part in parts_of(text):
            parts += [f"## psrun {word} {part}", _code(help_of(command, part), "text")]
    return "\n\n".join(parts)


def _errors() -> str:
    codes = (errors.ExitCode.__doc__ or "").strip()
    named = [f"| {code.value} | `{code.name}` |" for code in errors.ExitCode]
    rows = [
        f"| {'&nbsp;&nbsp;&nbsp;' * depth}`{kind.__name__}` | {_code_of(kind)} | {_line(kind)} |"
        for depth, kind in (*_tree(), (0, errors.Interrupted))
    ]
    tables = (
        "\n".join(lines)
        for lines in (
            ["| exit code | name |", "| --- | --- |", *named],
            ["| error | exit code | meaning |", "| --- | --- | --- |", *rows],
        )
    )
    where = (
        "`error.type` in `run.json` is one of these types. For the text of a message see [error messages](messages.md)."
    )
    return "\n\n".join(["# Error types and exit codes", where, codes, *tables])


def _tree(kind: type[errors.PsrunError] = errors.PsrunError, depth: int = 0) -> Iterator[tuple[int, type]]:
    yield depth, kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)


def _code_of(kind: Any) -> str:
    if kind is errors.Interrupted:
        return f"{errors.ExitCode.INTERRUPTED.value}, {errors.ExitCode.RESTART.value}"
    return str(kind.exit_code.value)


def _line(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())
