"""Profiles of TensorFlow, as it reads them itself."""

from __future__ import annotations

from pathlib import Path


def operations(file: Path) -> set[str]:
    """The names of all that a profile has."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return {
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    }


def has_steps(file: Path) -> bool:
    """Whether a profile has training steps, which update variables by the default optimizer."""
    return any("/Adagrad/" in name for name in operations(file))
