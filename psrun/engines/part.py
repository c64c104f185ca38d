"""What this part offers."""

from psrun.parts import Part

PART = Part(commands={"submit": "psrun.engines.submit:main"})
