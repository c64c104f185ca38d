"""The generated pages of the documentation site: from README, conf/, docstrings and --help."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from psrun import errors
from psrun.cli.completion import help_of, parts_of
from psrun.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
_PAGE_OF = {
    "experiments": "reference/groups/experiment.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!https?:|#)([^)]+)\)")


def pages() -> dict[str, str]:
    """The text of each generated page by its path within docs/."""
    return {
        "index.md": _linked((ROOT / "README.md").read_text(encoding="utf-8")),
        "contributing.md": _linked((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")),
        **{f"reference/groups/{name}.md": _group(name) for name in groups()},
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
    return sorted((CONF / group).glob("*.yaml"))


def _linked(text: str) -> str:
    """Points links to files of the repository to their pages. A file without a page keeps only its name."""

    def page(link: re.Match[str]) -> str:
        text, target = link.groups()
        if target.startswith("docs/"):
            return f"[{text}]({target})"
        return f"[{text}]({_PAGE_OF[target]})" if target in _PAGE_OF else f"`{text}`"

    return _LINK.sub(page, text).replace("](docs/", "](")


def _group(name: str) -> str:
    paths = choices(name)
    listed = "\n".join(f"- [`{name}={path.stem}`](#{path.stem}) {_first_sentence(path)}" for path in paths)
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


def _first_sentence(path: Path) -> str:
    comment, _ = _split(path.read_text(encoding="utf-8"))
    paragraph = " ".join(itertools.takewhile(bool, comment))
    return re.split(r"(?<=[.?])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0]


def _keys() -> str:
    body = (CONF / "config.yaml").read_text(encoding="utf-8").partition("\nhydra:\n")[0]
    _, keys = _split(body)
    return "# Keys of a run\n\n" + _code(keys, "yaml", "conf/config.yaml")


@mock.patch.dict(os.environ, COLUMNS="80")  # as wide as argparse makes its help
def _commands() -> str:
    parts = ["# Commands"]
    for command, module in COMMANDS.items():
        text = help_of(module)
        parts += [f"## psrun {command}", _code(text, "text")]
        for part in parts_of(text):
            parts += [f"## psrun {command} {part}", _code(help_of(module, part), "text")]
    return "\n\n".join(parts)


def _errors() -> str:
    codes = (errors.ExitCode.__doc__ or "").strip()
    named = [f"| {code.value} | `{code.name}` |" for code in errors.ExitCode]
    rows = [
        f"| {'&nbsp;&nbsp;&nbsp;' * depth}`{kind.__name__}` | {_code_of(kind)} | {_line(kind)} |"
        for depth, kind in _tree()
    ]
    tables = (
        "\n".join(lines)
        for lines in (
            ["| exit code | name |", "| --- | --- |", *named],
            ["| error | exit code | meaning |", "| --- | --- | --- |", *rows],
        )
    )
    return "\n\n".join(["# Errors", codes, *tables])


def _tree(kind: type[errors.PsrunError] = errors.PsrunError, depth: int = 0) -> Iterator[tuple[int, type]]:
    yield depth, kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below, depth + 1)


def _code_of(kind: type[errors.PsrunError]) -> str:
    if kind is errors.Interrupted:
        return f"{errors.ExitCode.INTERRUPTED.value}, {errors.ExitCode.RESTART.value}"
    return str(kind.exit_code.value)


def _line(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())
