"""Gives mkdocs the generated pages and the navigation."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import linked_page, pages

_GENERATED = pages()
_GROUPS = [{Path(path).stem: path} for path in _GENERATED if path.startswith("reference/groups/")]

_TUTORIALS = [
    {"Your CSV in fifteen minutes": "tutorials/your-csv.md"},
    {"A recommender for MovieLens in ten minutes": "tutorials/movielens.md"},
    {"A project with your own code": "tutorials/own-project.md"},
]
_GUIDES = [
    {
        "Data and models": [
            {"Read data from files": "guides/files.md"},
            {"Your own model and data": "guides/own-components.md"},
            {"Bring your Keras 3 model": "guides/keras3.md"},
            {"Large embedding tables": "guides/large-tables.md"},
            {"Losses and metrics": "guides/metrics.md"},
        ]
    },
    {
        "Training": [
            {"Configure a run": "guides/configuration.md"},
            {"Save and resume": "guides/checkpoints.md"},
            {"Evaluate": "guides/evaluation.md"},
            {"Long runs": "guides/long-runs.md"},
            {"Export, predict, serve": "guides/exports.md"},
            {"Take your tables with you": "guides/take-your-tables.md"},
            {"Make a run faster": "guides/speed.md"},
            {"Consistency": "guides/consistency.md"},
            {"Virtual clusters": "guides/virtual-clusters.md"},
            {"Loops, hooks and callbacks": "guides/own-loops.md"},
        ]
    },
    {
        "Many runs": [
            {"Sweeps and searches": "guides/sweeps.md"},
            {"Find, watch and compare runs": "guides/runs.md"},
            {"Reproduce a run": "guides/reproduce.md"},
            {"Track runs": "guides/trackers.md"},
        ]
    },
    {
        "Where to run": [
            {"This machine": "guides/engines/local.md"},
            {"Processes that you start": "guides/engines/tf_config.md"},
            {"Slurm": "guides/engines/slurm.md"},
            {"Kubernetes": "guides/engines/kubernetes.md"},
            {"Ray": "guides/engines/ray.md"},
        ]
    },
]
_REFERENCE = [
    "reference/index.md",
    {"Error messages": "reference/messages.md"},
    {"Run folder and exit codes": "reference/run-folder.md"},
    {"Glossary": "reference/glossary.md"},
    {"Groups": _GROUPS},
    {"All keys": "reference/keys.md"},
    {"Commands": "reference/commands.md"},
    {"Error types and exit codes": "reference/errors.md"},
    {"Changelog": "reference/changelog.md"},
]
_EXPLANATION = [
    {"How a run works": "explanation/design.md"},
    {"What faults cost": "explanation/faults.md"},
    {"Measurements": "explanation/measurements.md"},
    {"What the literature says": "explanation/literature.md"},
    {"Growth": "explanation/growth.md"},
    {"TensorFlow and tf-keras": "explanation/tensorflow.md"},
    {"Contributing": "contributing.md"},
]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [
        {"Overview": "index.md"},
        {"Tutorials": _TUTORIALS},
        {"How-to guides": _GUIDES},
        {"Reference": _REFERENCE},
        {"Explanation": _EXPLANATION},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in _GENERATED.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return linked_page(markdown, page.file.src_uri)
