"""Set-up from the file that `OTEL_CONFIG_FILE` names, in OpenTelemetry's declarative configuration format.

The experimental package `opentelemetry-configuration` reads the file and creates the providers. The format:
https://opentelemetry.io/docs/specs/otel/configuration/
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from importlib import import_module
from os import environ
from typing import Any, Final

from opentelemetry import _logs, metrics, trace

from traced_tools.errors import ConfigurationError
from traced_tools.observe.failures import error_type
from traced_tools.otel.handle import Provider

CONFIG_FILE: Final = "OTEL_CONFIG_FILE"

_GETTERS: dict[str, Callable[[], Any]] = {
    "tracer_provider": trace.get_tracer_provider,
    "meter_provider": metrics.get_meter_provider,
    "logger_provider": _logs.get_logger_provider,
}
_SIGNALS: Final = {"tracer_provider": "traces", "meter_provider": "metrics", "logger_provider": "logs"}


def is_named() -> bool:
    """Whether `OTEL_CONFIG_FILE` is set."""
    return bool(environ.get(CONFIG_FILE))


def set_up(is_free: Callable[[object, str], bool]) -> tuple[Provider, ...]:
    """Set up OpenTelemetry from the file, and return the providers that were created.

    Args:
        is_free: called with the current provider and the name of its signal; returns False if the application has set
            the provider, which then stays in use.

    Raises:
        ConfigurationError: the package is not installed, or the file is invalid.
    """
    try:
        package = import_module("opentelemetry.configuration")
    except ImportError:
        raise ConfigurationError(
            f"{CONFIG_FILE} needs an extra: pip install 'traced_tools[file-configuration]'"
        ) from None
    problem = None
    try:
        config = package.load_config_file(environ[CONFIG_FILE])
        sections = _free_sections(config, is_free)
        package.configure_sdk(config)
    except Exception as error:  # its text may quote the file, which may contain keys
        problem = error_type(error) + _place(error)
    if problem is not None:
        raise ConfigurationError(f"{CONFIG_FILE}: the file cannot be used: {problem}")
    return tuple(_take_over(_GETTERS[name]()) for name in sections)


def _free_sections(config: Any, is_free: Callable[[object, str], bool]) -> list[str]:
    """Remove providers that the application has set from the configuration, and return the names of the others."""
    sections = [name for name in _GETTERS if getattr(config, name) is not None and not config.disabled]
    occupied = [name for name in sections if not is_free(_GETTERS[name](), _SIGNALS[name])]
    for name in occupied:
        setattr(config, name, None)
    return [name for name in sections if name not in occupied]


def _take_over(provider: Provider) -> Provider:
    """Unregister a provider's own exit handler, which may wait half a minute, and return the provider."""
    atexit.unregister(provider.shutdown)
    return provider


def _place(error: BaseException) -> str:
    """Return the place in the file that violates the schema, as names of keys without values; else an empty text."""
    path = getattr(error.__cause__, "json_path", None)
    return f" at {path}" if isinstance(path, str) else ""
