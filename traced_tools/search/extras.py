"""The packages of the extra `search`, which are imported when an index is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from traced_tools.errors import ConfigurationError


def load_numpy() -> Any:
    """Return numpy; raise `ConfigurationError` if it is not installed."""
    return _load("numpy")


def load_tantivy() -> Any:
    """Return tantivy; raise `ConfigurationError` if it is not installed."""
    return _load("tantivy")


def _load(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        pass
    raise ConfigurationError(
        f"this tool index needs {package}: pip install 'traced_tools[search]', or use RegexToolIndex"
    )
