"""The steps that workers do: what they are made of, how they are scheduled, and what makes them fast."""
