"""Code blocks of README and docs, and the psrun commands in them."""

from __future__ import annotations

import re
import shlex

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
