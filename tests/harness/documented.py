"""Code blocks of README and docs, and the psrun commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from support import REPOSITORY

ROOT = REPOSITORY
_ENDS = re.compile(r"\||&&|;|&|>|<")  # where a command of a shell ends, or its arguments do
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def blocks(text: str, language: str) -> list[tuple[str, str]]:
    """The title and the text of each block in `language`. The title may be a comment in the first line."""
    matches = re.findall(
        rf'^```{language}(?: title="([^"]+)")?\n(?:# (\S+\.\w+)\n)?(.*?)^```$', text, flags=re.M | re.S
    )
    return [(title or comment, code) for title, comment, code in matches]


def steps(text: str) -> list[tuple[str, str]]:
    """The lines of each shell block of a page, with the output that the page shows below them; empty for none."""
    return re.findall(r"^```bash\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, flags=re.M | re.S)


def taken(shown: str, output: str) -> str:
    """The text `shown` with its lines as `output` has them, in their order.

    A line `...` stands for any lines, and ` ...` at the end of a line for the rest of it. Measured numbers and the
    width of columns may differ, since no two asynchronous runs are equal.

    Raises:
      AssertionError: the output does not have a line.
    """
    left = iter(output.splitlines())
    lines = []
    for line in shown.splitlines():
        if line != "...":
            line = _same_line(line, left)
            assert line, f"{shown}\nis not, except for measured numbers, in the output:\n{output}"
        lines.append(f"{line}\n")
    return "".join(lines)


def _same_line(shown: str, lines: Iterator[str]) -> str:
    """The next of the lines that has the words of `shown`, except for measured numbers; empty if none has."""
    start = shown.removesuffix(" ...")
    words = start.split()
    for line in lines:
        found = line.rstrip()
        if start != shown:
            beginning = re.match(rf"\s*(\S+\s+){{{len(words) - 1}}}\S+", found)
            found = beginning[0] if beginning else ""
        if [_without_numbers(word) for word in found.split()] == [_without_numbers(word) for word in words]:
            return found + shown[len(start) :]
    return ""


def _without_numbers(word: str) -> str:
    """The word without measured numbers: with a fraction, in the notation with an exponent, or a metric of 0 or 1."""
    return re.sub(r"\d+\.\d+(e-?\d+)?|\de-?\d+|^[01]$", "0.0", word)


def commands(text: str) -> list[list[str]]:
    """The arguments of each psrun command in the shell blocks of a page, in order."""
    listed = []
    for _, code in blocks(text, "(?:bash|sh)"):
        for words in _statements(code):
            names = [index for index, word in enumerate(words) if word.rpartition("/")[2] == "psrun"]
            for index in names:
                after = words[index + 1 :]
                end = next((at for at, word in enumerate(after) if _ENDS.fullmatch(word)), len(after))
                listed.append([word.replace("\\$", "$") for word in after[:end]])
    return listed


def _statements(code: str) -> list[list[str]]:
    """The words of each line; lines that end in a backslash or within quotes are continued."""
    statements, pending = [], ""
    for line in code.replace("\\\n", " ").splitlines():
        pending = f"{pending} {line}" if pending else line
        try:
            statements.append(shlex.split(pending, comments=True))
        except ValueError:  # no closing quotation yet
            continue
        pending = ""
    return statements


def inline_overrides(text: str) -> list[str]:
    """What a shell passes to psrun of each `KEY=VALUE` within the sentences of a page."""
    sentences = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = []
    for code in re.findall(r"`([^`\n]+)`", sentences):
        try:
            words = shlex.split(code)
        except ValueError:  # no command
            continue
        if len(words) == 1 and re.match(r"[\w.+/@]+=.", words[0]):
            found.append(words[0])
    return found
