"""mkdocs asks here for its pages and their order."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pages import pages

_MADE = pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    groups = [{Path(path).stem: path} for path in _MADE if path.startswith("groups/")]
    config.nav = [
        {"Guide": "index.md"},
        {"Your CSV in five minutes": "tutorials/your-csv.md"},
        {"From the tutorials": "from_the_tutorials.md"},
        {"Groups": groups},
        {"Losses, metrics, weights": "losses.md"},
        {"Own loops and hooks": "own_loops.md"},
        {"Experiments": "experiments.md"},
        {"Workers with several GPUs": "replicas.md"},
        {"Labels that are words": "labels.md"},
        {"Which optimizer": "optimizers.md"},
        {"Scale": "scale.md"},
        {"Keys of a run": "keys.md"},
        {"Verbs": "verbs.md"},
        {"Errors": "errors.md"},
        {"Changelog": "changelog.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in _MADE.items():
        files.append(File.generated(config, path, content=text))
    return files
