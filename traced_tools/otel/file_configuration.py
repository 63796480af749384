"""Set-up from the file that `OTEL_CONFIG_FILE` names: OpenTelemetry's declarative configuration.

The package `opentelemetry-configuration`, which is experimental, reads the file and makes all that it says; the format
is described at https://opentelemetry.io/docs/specs/otel/configuration/
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from importlib import import_module
from os import environ
from typing import Any, Final

from opentelemetry import _logs, metrics, trace

from traced_tools.errors import ConfigurationError
from traced_tools.observe.scope import error_type
from traced_tools.otel.handle import Provider

CONFIG_FILE: Final = "OTEL_CONFIG_FILE"

_GETTERS: dict[str, Callable[[], Any]] = {
    "tracer_provider": trace.get_tracer_provider,
    "meter_provider": metrics.get_meter_provider,
    "logger_provider": _logs.get_logger_provider,
}


def is_named() -> bool:
    """Whether the environment names a file."""
    return bool(environ.get(CONFIG_FILE))


def set_up(is_free: Callable[[object, str], bool]) -> tuple[Provider, ...]:
    """Set up what the file says, and return the providers that were made.

    Args:
        is_free: whether nobody has set a provider, given what is set and the name of its signal; a provider of the
            application stays.

    Raises:
        ConfigurationError: when the package is not installed, or the file cannot be used.
    """
    try:
        package = import_module("opentelemetry.configuration")
    except ImportError:
        raise ConfigurationError(
            f"{CONFIG_FILE} is set, which needs the extra: pip install 'traced_tools[file-configuration]'"
        ) from None
    problem = None
    try:
        config = package.load_config_file(environ[CONFIG_FILE])
        wanted = _wanted(config, is_free)
        package.configure_sdk(config)
    except Exception as error:  # its text may quote the file, which may hold keys
        problem = error_type(error) + _place(error)
    if problem is not None:
        raise ConfigurationError(f"{CONFIG_FILE}: the file cannot be used: {problem}")
    return tuple(_taken_over(_GETTERS[name]()) for name in wanted)


def _wanted(config: Any, is_free: Callable[[object, str], bool]) -> list[str]:
    """Take out of the file what the application has set itself, and return the providers that are left."""
    sections = [name for name in _GETTERS if getattr(config, name) is not None and not config.disabled]
    taken = [name for name in sections if not is_free(_GETTERS[name](), name.partition("_")[0])]
    for name in taken:
        setattr(config, name, None)
    return [name for name in sections if name not in taken]


def _taken_over(provider: Provider) -> Provider:
    """Return a provider that no longer stops itself at the end of the process, where it would wait half a minute."""
    atexit.unregister(provider.shutdown)
    return provider


def _place(error: BaseException) -> str:
    """Say where in the file a schema was broken, if that was it: names of keys and no values."""
    path = getattr(error.__cause__, "json_path", None)
    return f" at {path}" if isinstance(path, str) else ""
