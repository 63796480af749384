"""Finds the files of the dashboards and rules, which `python -m dashboards` generates."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from traced_tools.errors import ConfigurationError


class BoardSchema(StrEnum):
    """A schema of Grafana's dashboards; its value is the name of its folder."""

    CLASSIC = "classic"
    V2 = "v2"


def folder() -> Path:
    """Return the folder of the generated files: inside the package in a wheel, else beside it in a checkout."""
    packaged = Path(__file__).parent / "files"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "dashboards"


def boards(schema: BoardSchema) -> list[Path]:
    """Return the files of the boards.

    Raises:
        ConfigurationError: the installation has none.
    """
    paths = sorted((folder() / schema).glob("*.json"))
    if not paths:
        raise ConfigurationError("this installation has no dashboards: install traced_tools from its wheel")
    return paths


def rules() -> list[Path]:
    """Return the files of the recording rules and the alert rules."""
    return sorted((folder() / "rules").glob("*.yaml"))
