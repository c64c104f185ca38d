"""Modes of evaluation. `validation` is Model.fit's own and lives in the fit trainer."""
