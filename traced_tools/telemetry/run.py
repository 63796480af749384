"""The telemetry of one run: where its spans and records go, and the scopes it opens.

Providers are looked up when a run begins and not when the package is imported, so an application may set them up in any
order. With no SDK in place a run opens no scope at all: the shared `OFF` stands in for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace

from traced_tools._version import __version__
from traced_tools.telemetry import names
from traced_tools.telemetry.metrics import Instruments
from traced_tools.telemetry.scope import SelfTime, report_failure


@dataclass(frozen=True)
class TelemetryOptions:
    """What a client emits, and where to.

    Args:
        tracer_provider: where spans go; None for the global provider, looked up when a run begins.
        meter_provider: where metrics go; None for the global provider.
        hooks: spans for `all` hooks that run, for the `implemented` ones a subclass overrides, or for `none`. Their
            metric is recorded either way.
        iterations: False leaves `iteration` spans out; model calls and tools then hang from the loop's span.
    """

    tracer_provider: trace.TracerProvider | None = None
    meter_provider: metrics.MeterProvider | None = None
    hooks: Literal["all", "implemented", "none"] = "all"
    iterations: bool = True

    def __post_init__(self) -> None:
        if self.hooks not in ("all", "implemented", "none"):
            raise ValueError("hooks must be 'all', 'implemented' or 'none'")


class RunTelemetry:
    """Tracer, instruments and identity of one run.

    Args:
        options: what to emit, and where to.
        agent: the client's name; a metric label.
        run_id: the run's id.
        conversation_id: the caller's conversation, when it gave one.
    """

    __slots__ = ("agent", "agent_label", "conversation_id", "instruments", "options", "run_id", "self_time", "tracer")

    def __init__(
        self, options: TelemetryOptions, agent: str, run_id: str = "", conversation_id: str | None = None
    ) -> None:
        self.options = options
        self.agent = agent
        self.run_id = run_id
        self.conversation_id = conversation_id
        self.tracer = _tracer(options.tracer_provider or trace.get_tracer_provider())
        self.instruments = _instruments(options.meter_provider or metrics.get_meter_provider())
        self.agent_label = {names.AGENT_NAME: agent}
        self.self_time = SelfTime()

    @property
    def enabled(self) -> bool:
        """Whether anything is emitted at all."""
        return self.tracer is not None or self.instruments is not None

    def telemetry_failed(self, error: Exception) -> None:
        """Count a span that was lost because the application's tracing set-up raised, and go on."""
        report_failure(error)
        if self.instruments is not None:
            self.instruments.telemetry_failures.add(1)


_TRACERS: WeakKeyDictionary[trace.TracerProvider, trace.Tracer | None] = WeakKeyDictionary()
_INSTRUMENTS: WeakKeyDictionary[metrics.MeterProvider, Instruments | None] = WeakKeyDictionary()


def _is_no_op(part: object) -> bool:
    """Whether a tracer, meter or provider is one of the API's own, which record nothing."""
    return type(part).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _tracer(provider: trace.TracerProvider) -> trace.Tracer | None:
    if _is_no_op(provider):
        return None
    try:
        return _TRACERS[provider]
    except KeyError:
        tracer = provider.get_tracer(names.SCOPE, __version__)
        return _TRACERS.setdefault(provider, None if _is_no_op(tracer) else tracer)


def _instruments(provider: metrics.MeterProvider) -> Instruments | None:
    if _is_no_op(provider):
        return None
    try:
        return _INSTRUMENTS[provider]
    except KeyError:
        meter = provider.get_meter(names.SCOPE, __version__)
        return _INSTRUMENTS.setdefault(provider, None if _is_no_op(meter) else Instruments(meter))


_SEEN_ERRORS: defaultdict[str, set[str]] = defaultdict(set)


def bounded_error_type(tool: str, kind: str) -> str:
    """Return `kind`, or `_OTHER` once a tool has shown too many kinds of error: a label must stay bounded."""
    seen = _SEEN_ERRORS[tool]
    if kind in seen:
        return kind
    if len(seen) >= names.MAX_ERROR_TYPES_PER_TOOL:
        return names.OTHER_ERROR
    seen.add(kind)
    return kind
