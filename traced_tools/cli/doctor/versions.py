"""The check of versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from traced_tools._version import __version__
from traced_tools.cli.doctor.result import Result, State
from traced_tools.fast_path.known_sdk import RELEASE, is_known_version, unknown_release

_GROUP: Final = "versions"
_PACKAGES: Final = ("opentelemetry-api", "opentelemetry-exporter-otlp")
_EXTRAS: Final = {
    "file-configuration": "opentelemetry.configuration",
    "http2": "h2",
    "mcp": "mcp",
    "postgresql": "psycopg",
    "prices": "genai_prices",
    "redis": "redis",
    "search": "tantivy",
    "signing": "cryptography",
}


def check_versions() -> Iterator[Result]:
    """Yield the versions of Python and of the packages, and the extras that are not installed."""
    yield Result(_GROUP, "Python", State.OK, platform.python_version())
    yield Result(_GROUP, "traced_tools", State.OK, __version__)
    for package in _PACKAGES:
        yield _package(package)
    yield Result(_GROUP, "opentelemetry-sdk", State.OK, RELEASE)
    if is_known_version():
        yield Result(_GROUP, "fast path", State.OK, f"knows opentelemetry-sdk {RELEASE}")
    else:
        yield Result(_GROUP, "fast path", State.NOTE, unknown_release())
    if missing := [extra for extra, module in _EXTRAS.items() if not _is_installed(module)]:
        text = f"not installed: {', '.join(missing)}"
        yield Result(_GROUP, "extras", State.OK, text, "pip install 'traced_tools[EXTRA]' if you use one")


def _package(name: str) -> Result:
    try:
        return Result(_GROUP, name, State.OK, version(name))
    except PackageNotFoundError:
        return Result(_GROUP, name, State.NOTE, "not installed", f"pip install {name}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
