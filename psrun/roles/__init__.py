"""The roles of tasks: the chief trains, a planner only analyzes. `psrun.roles.table` lists them."""
