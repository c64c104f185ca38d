"""What this package offers psrun."""

from psrun.parts import Part

PART = Part(
    commands={"greet": "toy.greet:main"},
    choices={"cluster": {"marked": "toy.engine_choice:Marked"}},
    metrics={"median_error": "toy.median_error:MedianError"},
    gathering="toy.median_error:gathering",
    models="toy.recipes:RecipeAdapter",
    conf="toy.conf",
)
