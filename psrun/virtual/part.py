"""What this part offers."""

from psrun.parts import Part

PART = Part(choices={"cluster": {"virtual": "psrun.virtual.choice:Virtual"}})
