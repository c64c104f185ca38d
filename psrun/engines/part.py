"""What this part offers."""

from psrun.parts import Part

PART = Part(
    commands={"submit": "psrun.engines.submit:main"},
    choices={
        "cluster": {
            "kubernetes": "psrun.engines.kubernetes.choice:Kubernetes",
            "ray": "psrun.engines.ray.choice:Ray",
            "slurm": "psrun.engines.slurm.choice:Slurm",
        },
    },
    settings={
        "kubernetes": "psrun.engines.kubernetes.settings:KubernetesKeys",
        "slurm": "psrun.engines.slurm.choice:SlurmJob",
    },
)
