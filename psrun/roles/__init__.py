"""What a task does: the coordinator trains, a planner only looks. One module each."""
