"""The schedules and records that travel with the package are beside it in a checkout, and inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """Returns the folder of this name, `schedules` or `results`, in the package or, in a checkout, beside it.

    The wheel maps both into the package: see pyproject.toml.
    """
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name
