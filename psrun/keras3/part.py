"""What this part offers."""

from psrun.parts import Part

PART = Part(models="psrun.keras3.adapter:Keras3Adapter")
