"""Lists within pages of docs/, from the code: what is done in which order and why in its place, states of runs.

`python docs/order.py` writes them into the pages, between their marks. A test compares them with the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from psrun.runs.states import STATES

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "explanation" / "design.md", ROOT / "docs" / "guides" / "runs.md")
STAGES = ROOT / "psrun" / "closures" / "stages.py"
ACTIONS = ROOT / "psrun" / "training" / "actions.py"
_MOMENTS = {
    "before_epoch": "Before an epoch",
    "during_epoch": "Before each execution of steps",
    "after_piece": "When an execution is scheduled",
    "when_joined": "When all steps of the epoch are done",
    "after_epoch": "After it, when the metrics are read",
    "at_end": "When the trainer is done",
}
_ENTRY = re.compile(r"^\s+(?:\*\(\[)?([\w.]+)(?:\] if \w+ else \[\]\))?,\s+# (.+)$")
_MOMENT = re.compile(r"^\s+(\w+)=\[$")


def up_to_date(text: str) -> str:
    """The text of a page with the lists between their marks as the code has them now."""
    for mark, listed in LISTS.items():
        begin, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            _, end, after = rest.partition("<!-- end -->")
            text = f"{begin}{found}\n{listed()}\n\n{end}{after}"
    return text


def stages() -> str:
    """A numbered list of the stages of a closure, from the outside of a step to its inside."""
    source = STAGES.read_text(encoding="utf-8")
    block = source.partition("ORDER: ")[2].partition("\n)\n")[0]
    lines = []
    for line in block.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            lines.append(f"{len(lines) + 1}. `{entry[1]}`: {entry[2]}.")
    return "\n".join(lines)


def actions_around_epochs() -> str:
    """For each moment of an epoch, a numbered list of the actions."""
    source = ACTIONS.read_text(encoding="utf-8")
    block = source.partition("    return Actions(\n")[2].partition("\n    )\n")[0]
    lines: list[str] = []
    number = 0
    for line in block.splitlines():
        moment = _MOMENT.match(line)
        entry = _ENTRY.match(line)
        if moment is not None:
            lines += ["", f"{_MOMENTS[moment[1]]}:", ""]
            number = 0
        elif entry is not None:
            number += 1
            lines.append(f"{number}. `{entry[1]}`: {entry[2]}.")
    return "\n".join(lines).strip()


def states_of_runs() -> str:
    """A table of the states of runs and what each means."""
    lines = ["| state | meaning |", "| --- | --- |"]
    for word, state in STATES.items():
        lines.append(f"| `{word}` | {state.means} |")
    return "\n".join(lines)


LISTS = {
    "the stages of a step": stages,
    "the actions around an epoch": actions_around_epochs,
    "the states of runs": states_of_runs,
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(up_to_date(page.read_text(encoding="utf-8")), encoding="utf-8")
