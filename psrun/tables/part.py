"""What this part offers."""

from psrun.parts import Part

PART = Part(
    commands={"data": "psrun.tables.commands:main"},
    moved={"psrun.data.table": "psrun.tables.table"},
)
