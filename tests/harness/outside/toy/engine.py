"""A cluster of another package: how its tasks start."""

from __future__ import annotations

import portpicker

from psrun.launch.backend import Backend, TaskProcess
from psrun.launch.child_processes import start_alone


def open_backend(launch):
    def start(folder, environment, log):
        with log.open("a") as lines:
            lines.write(f"started by the {launch.run.cluster.mark} engine\n")
        return start_alone(folder, environment, log)

    folder = launch.folder.path
    addresses = {}
    for task in launch.plan.addressed():
        addresses[task] = f"localhost:{portpicker.pick_unused_port()}"
    processes = {}
    for task in launch.plan.tasks():
        processes[task] = TaskProcess(task, addresses, folder, start)
    return Backend(processes, addresses)
