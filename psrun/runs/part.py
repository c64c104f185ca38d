"""What this part offers."""

from psrun.parts import Part

PART = Part(
    commands={
        "--multirun": "psrun.runs.sweeps.hydra_sweeps:run",
        "--shell-completion": "psrun.runs.completion:main",
        "list": "psrun.runs.listing.commands:main",
        "watch": "psrun.runs.watch.commands:main",
        "logs": "psrun.runs.logs:main",
        "stop": "psrun.runs.stop:main",
        "rm": "psrun.runs.remove:main",
        "report": "psrun.runs.report.commands:main",
        "diff": "psrun.runs.report.diff:main",
        "reproduce": "psrun.runs.reproduce:main",
    },
    stores="psrun.runs.stores",
    run_view="psrun.runs.watch.run:RunView",
    choices={
        "tracker": {
            "mlflow": "psrun.runs.trackers.choices:MLflow",
            "wandb": "psrun.runs.trackers.choices:WandB",
        },
    },
)
