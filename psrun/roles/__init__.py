"""The roles of tasks: the coordinator trains, a planner only analyzes. One module each."""
