"""What the package makes of each OpenTelemetry provider, once: a tracer, instruments, a logger."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from opentelemetry import _logs, metrics, trace

from traced_tools._version import __version__
from traced_tools.core.fork import on_fork
from traced_tools.core.frozen import frozen
from traced_tools.observe import names
from traced_tools.observe.failures import SDK, report_failure
from traced_tools.observe.instruments import Instruments
from traced_tools.observe.logger import ApiLogger
from traced_tools.observe.meter import ApiMeter
from traced_tools.observe.settings import read_conventions, read_detail, read_openinference, read_or_warn
from traced_tools.observe.tracer import ApiTracer

if TYPE_CHECKING:
    from traced_tools.core.enums import Detail

T = TypeVar("T")
_FAST_PATH: Final = "traced_tools.fast_path"


@frozen
class Tracing:
    """A tracer, and the environment's settings of its spans, which are read once because each read costs time."""

    tracer: ApiTracer | None
    detail: Detail
    openinference: bool


_NO_TRACING: Final = Tracing(None, "run", False)
_making = (
    threading.RLock()
)  # reentrant: a provider that is asked for a tracer may start a run itself, and so may a signal handler


def tracing_of(provider: trace.TracerProvider | None) -> Tracing:
    """Return the tracer and its settings, of a provider or, if it is None, of the global one."""
    return _TRACINGS.of(_select(provider, trace.get_tracer_provider)) or _NO_TRACING


def instruments_of(provider: metrics.MeterProvider | None) -> Instruments | None:
    """Return the instruments of a provider or, if it is None, of the global one; None if it records nothing."""
    return _INSTRUMENTS.of(_select(provider, metrics.get_meter_provider))


def logger_of(provider: _logs.LoggerProvider | None) -> ApiLogger | None:
    """Return the logger of a provider or, if it is None, of the global one; None if it emits nothing."""
    return _LOGGERS.of(_select(provider, _logs.get_logger_provider))


def is_stand_in(provider: object) -> bool:
    """Whether a provider is the API's placeholder before one is set; the API has no public names for all of them."""
    return _is_of_the_api(provider) and not isinstance(provider, _NO_OPS)


class _PerProvider(Generic[T]):
    """A cache of the object that the package makes from each provider.

    Providers are distinguished by identity: an application's provider may have no hash, or equal another one.

    Args:
        make: makes it; returns None when the provider records nothing.
    """

    def __init__(self, make: Callable[[Any], T | None]) -> None:
        self._make = make
        self._values: dict[int, tuple[ref[object], T | None]] = {}

    def of(self, provider: object) -> T | None:
        """Return the object made from a provider; None if the provider records nothing or the object cannot be made."""
        if _is_of_the_api(provider):
            return None
        key = id(provider)
        try:
            if key not in self._values:  # without the lock, because every run looks here
                with _making:
                    if key not in self._values:
                        # The reference removes the entry before another object can have the provider's id.
                        self._values[key] = (ref(provider, lambda _: self._values.pop(key, None)), self._make(provider))
            return self._values[key][1]
        except Exception as error:
            report_failure(error, SDK)
            return None


_API = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
_NO_OPS = (trace.NoOpTracerProvider, metrics.NoOpMeterProvider, _logs.NoOpLoggerProvider)


def _is_of_the_api(part: object) -> bool:
    """Whether a tracer, meter, logger or provider is of one of the API's own classes, which record nothing."""
    return type(part).__module__.startswith(_API)


def _unless_of_the_api(part: T) -> T | None:
    return None if _is_of_the_api(part) else part


def _select(provider: T | None, current: Callable[[], T]) -> T:
    """Return `provider`, or the global provider if it is None or one of the API's placeholders."""
    return current() if provider is None or is_stand_in(provider) else provider


def _tracing(provider: trace.TracerProvider) -> Tracing | None:
    tracer = _unless_of_the_api(provider.get_tracer(names.SCOPE, __version__))
    if tracer is None:
        return None
    detail: Detail = read_or_warn(read_detail, "every hook has its span") or "hooks"
    return Tracing(_recorder(tracer), detail, bool(read_or_warn(read_openinference, "it is left out")))


def _recorder(tracer: trace.Tracer) -> ApiTracer:
    """Return what starts the spans of a tracer: the fast path, if the tracer is one of the SDK that it knows."""
    fast = _fast_path("tracer", "opentelemetry.sdk.trace")
    if fast is not None and fast.is_known_tracer(tracer):
        recorder: ApiTracer = fast.FastTracer(tracer)
        return recorder
    return ApiTracer(tracer)


def _instruments(provider: metrics.MeterProvider) -> Instruments | None:
    meter = _unless_of_the_api(provider.get_meter(names.SCOPE, __version__))
    return None if meter is None else Instruments(_creator(meter), read_conventions())


def _creator(meter: metrics.Meter) -> ApiMeter:
    """Return what creates the instruments of a meter: the fast path, if the meter is one of the SDK that it knows."""
    fast = _fast_path("meter", "opentelemetry.sdk.metrics")
    if fast is not None and fast.is_known_meter(meter):
        recorder: ApiMeter = fast.FastMeter(meter)
        return recorder
    return ApiMeter(meter)


def _logger(provider: _logs.LoggerProvider) -> ApiLogger | None:
    logger = _unless_of_the_api(provider.get_logger(names.SCOPE, __version__))
    return None if logger is None else _emitter(logger)


def _emitter(logger: _logs.Logger) -> ApiLogger:
    """Return what emits the events of a logger: the fast path, if the logger is one of the SDK that it knows."""
    fast = _fast_path("logger", "opentelemetry.sdk._logs")
    if fast is not None and fast.is_known_logger(logger):
        recorder: ApiLogger = fast.FastLogger(logger)
        return recorder
    return ApiLogger(logger)


def check_sdk() -> None:
    """Log a release of the SDK that the fast path does not know, if there is a fast path."""
    _fast_path("known_sdk", "opentelemetry.sdk")


def _fast_path(part: str, sdk: str) -> Any:
    """Return a module of the fast path; None without the fast path, or if it does not know the SDK that is in use.

    The fast path is named and not imported, because everything works without it. Its parts are not imported with an
    unknown release, which may lack the private names that they import.
    """
    if sdk not in sys.modules:  # whose import takes long
        return None
    try:
        is_known: bool = import_module(f"{_FAST_PATH}.known_sdk").takes_part()
        return import_module(f"{_FAST_PATH}.{part}") if is_known else None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{error.name}.".startswith(f"{_FAST_PATH}."):
            raise
        return None


_TRACINGS = _PerProvider(_tracing)
_LOGGERS = _PerProvider(_logger)
_INSTRUMENTS = _PerProvider(_instruments)


def _forget_lock() -> None:
    global _making
    _making = threading.RLock()


on_fork(_forget_lock)
