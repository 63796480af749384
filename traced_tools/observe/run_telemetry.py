"""The telemetry of one run: where its spans and records go, and the scopes it opens.

Providers are looked up when a run begins and not when the package is imported, so an application may set them up in any
order. With no SDK in place a run opens no scope at all: the shared `OFF` stands in for each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, cast

from opentelemetry import _logs, metrics, trace

from traced_tools.core.checks import expect, expect_positive
from traced_tools.core.enums import DETAILS, CaptureMode, Conventions, Detail, Hook
from traced_tools.core.messages import encodable
from traced_tools.flow.deferred import defer, is_in_finalizer, run_deferred
from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, copy_present_fields, put
from traced_tools.observe.content import ContentCapture, RunContent, as_capture, capture_in_force, recorded_principal
from traced_tools.observe.failures import CANCELLATIONS, SDK, report_failure
from traced_tools.observe.providers import instruments_of, logger_of, tracing_of
from traced_tools.observe.run_attributes import NO_ATTRIBUTES, RunAttributes
from traced_tools.observe.sanitize import agent_name_label, agent_version_label
from traced_tools.observe.settings import RELEASED, read_conventions
from traced_tools.observe.time_ledger import TimeLedger

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.prices import PriceTable
    from traced_tools.observe.agent_version import AgentDigests
    from traced_tools.observe.export_stats import ExportStats
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.stages.subjects import ObservedModel

P = ParamSpec("P")

_SERVER = (("server_address", names.SERVER_ADDRESS), ("server_port", names.SERVER_PORT))
_IDENTITY = (("run_id", names.RUN_ID), ("agent", names.AGENT_NAME), ("conversation_id", names.CONVERSATION_ID))


@dataclass(frozen=True)
class TelemetryOptions:
    """What a client emits, and where it sends it.

    Args:
        tracer_provider: where spans go; None for the global provider, which is looked up when a run begins.
        meter_provider: where metrics go; None for the global provider.
        logger_provider: where log-based events go; None for the global provider.
        detail: which spans a run has: `run` for agent, model calls and tools; `steps` adds iterations and what memory
            does; `hooks` adds each hook of an advisor. None uses the environment variable `TRACED_TOOLS_DETAIL`, by
            default `hooks`.
            Metrics, events and the spans of refused calls are the same with each setting.
        slow_hook: a hook whose own time reaches this number of seconds has a span with every `detail`; None for no
            such limit. A hook or an operation of memory that fails always has a span.
        openinference: whether spans have `openinference.span.kind`, which Phoenix uses to draw spans. None uses the
            environment variable `TRACED_TOOLS_OPENINFERENCE`, by default False.
        capture: which contents to capture, as a `ContentCapture` or one of its modes. None uses the setting of
            `configure`, then the environment; by default nothing is captured.
        prices: the prices of model calls, such as `GenaiPrices()`; None counts no cost.

    Raises:
        ConfigurationError: the capture mode doesn't exist.
        ValueError: `detail` doesn't exist, or `slow_hook` is not above zero.
    """

    tracer_provider: trace.TracerProvider | None = None
    meter_provider: metrics.MeterProvider | None = None
    logger_provider: _logs.LoggerProvider | None = None
    detail: Detail | None = None
    slow_hook: float | None = 0.1
    openinference: bool | None = None
    capture: ContentCapture | CaptureMode | None = None
    prices: PriceTable | None = None

    def __post_init__(self) -> None:
        expect("tracer_provider", self.tracer_provider, (trace.TracerProvider, type(None)), "a TracerProvider or None")
        expect("meter_provider", self.meter_provider, (metrics.MeterProvider, type(None)), "a MeterProvider or None")
        expect("logger_provider", self.logger_provider, (_logs.LoggerProvider, type(None)), "a LoggerProvider or None")
        object.__setattr__(self, "capture", as_capture(self.capture))
        if self.prices is not None and not callable(getattr(self.prices, "price", None)):
            raise TypeError(f"prices must be a PriceTable or None, not {type(self.prices).__name__}")
        if self.detail not in (None, *DETAILS):
            raise ValueError("detail must be 'run', 'steps', 'hooks' or None")
        expect_positive("slow_hook", self.slow_hook)
        expect("openinference", self.openinference, (bool, type(None)), "True, False or None")


class RunTelemetry:
    """Tracer, instruments and identity of one run.

    Args:
        options: what to emit, and where to.
        agent: the client's name; empty outside a run.
        run_id: the run's id.
        conversation_id: the caller's conversation, when it gave one.
        has_listeners: whether events of the run go to advisors; events may carry content as well.
        agent_id: the client's stable id, if it has one.
        attributes: the run's attributes, which the application set.
        version: the version of the agent, if the application set it.
        principal: on whose behalf the run is.
        actors: which agents and tools stand between the principal and the run, the outermost first.

    Attributes:
        enabled: whether anything is emitted at all.
        agent_in_metrics: the client's name, or `_OTHER` for a long one and once the process has shown too many.
        agent_label: the label that every metric of the run carries.
        version: the version of the agent; None if it is not known.
        version_label: the labels of metrics that compare versions: `agent_label` with the version, once it is known.
        traces_iterations, traces_hooks: which spans there are beside those of agent, models and tools; memory has spans
            wherever iterations have.
        openinference: whether spans carry the kinds of OpenInference.
        conventions: which conventions name what model calls emit.
        content: which contents may be captured; None for no content.
        is_compacted: whether the conversation was compacted and no model call has begun since.
        ledger: where the time of the run is booked.
        listener_ns: how long `on_chunk` and `on_event` of each advisor have taken in total, in nanoseconds.
    """

    __slots__ = (
        "_chat_labels",
        "_failed_listeners",
        "_failed_steps",
        "_identity",
        "_principals",
        "actors",
        "agent",
        "agent_id",
        "agent_in_metrics",
        "agent_label",
        "attributes",
        "content",
        "conventions",
        "conversation_id",
        "enabled",
        "instruments",
        "is_compacted",
        "ledger",
        "listener_ns",
        "logger",
        "openinference",
        "options",
        "principal",
        "run_id",
        "tracer",
        "traces_hooks",
        "traces_iterations",
        "version",
        "version_label",
    )

    def __init__(
        self,
        options: TelemetryOptions,
        agent: str,
        run_id: str = "",
        conversation_id: str | None = None,
        *,
        has_listeners: bool = False,
        agent_id: str | None = None,
        attributes: RunAttributes = NO_ATTRIBUTES,
        version: str | None = None,
        principal: str | None = None,
        actors: tuple[str, ...] = (),
    ) -> None:
        self.options = options
        self.principal = principal
        self.actors = actors
        self._principals: dict[bool, str | None] = {}
        self.attributes = attributes
        self.agent = agent = encodable(agent)
        self.agent_id = agent_id
        self.run_id = run_id
        self.conversation_id = conversation_id
        tracing = tracing_of(options.tracer_provider)
        self.tracer, detail = tracing.tracer, options.detail or tracing.detail
        self.openinference = tracing.openinference if options.openinference is None else options.openinference
        self.instruments = instruments_of(options.meter_provider)
        self.agent_in_metrics = agent_name_label(agent) if agent else ""
        self.agent_label: Attributes = {}
        put(self.agent_label, names.AGENT_NAME, self.agent_in_metrics)
        self.version = version
        self.version_label: Attributes = self.agent_label
        if version is not None and self.instruments is not None:
            self._label_version(agent_version_label(version, self.agent_in_metrics))
        self.logger = logger_of(options.logger_provider)
        self.enabled = any(provider is not None for provider in (self.tracer, self.instruments, self.logger))
        self.content = self._content() if self.enabled or has_listeners else None
        self.conventions: Conventions = read_conventions() if self.enabled else RELEASED
        self.traces_iterations, self.traces_hooks = detail != "run", detail == "hooks"
        self.ledger = TimeLedger()
        self.listener_ns: defaultdict[tuple[Hook, str], int] = defaultdict(int)
        self.is_compacted = False
        self._failed_steps: dict[int, tuple[BaseException, str]] = {}
        self._failed_listeners: dict[int, BaseException] = {}  # the references keep the ids unique
        run_deferred()
        self._chat_labels: dict[int, Attributes] = {}
        self._identity: Attributes = {}

    def identified(self, digests: AgentDigests, *, is_own: bool) -> None:
        """Record what the agent is sent, which is its version if the application set none.

        Args:
            digests: the digests of what it is sent.
            is_own: whether all of it is the client's own. What a request sets may be another text each time, so it
                makes no version.
        """
        if self.version is not None:
            return
        label = names.OTHER
        if is_own:
            self.version = digests.version
            label = agent_version_label(self.version, self.agent_in_metrics)
        self._label_version(label)

    def _label_version(self, label: str) -> None:
        self.version_label = {**self.agent_label, names.AGENT_VERSION: label}

    def _content(self) -> RunContent | None:
        capture = capture_in_force(cast("ContentCapture | None", self.options.capture))
        return None if capture is None else RunContent(capture, self.telemetry_failed, read_conventions())

    def content_on_spans(self) -> RunContent | None:
        """Return which contents spans of the run may carry; None for no content."""
        return self.content if self.content is not None and self.content.capture.on_spans else None

    def content_on_events(self) -> RunContent | None:
        """Return which contents logs of the run may carry, also if nothing else is emitted; None for no content."""
        content = self.content or self._content()
        return content if content is not None and content.capture.on_events else None

    def failed_at(self, error: BaseException, step: Callable[[], str], error_type: str | None) -> bool:
        """Record that an error leaves a step of the run, and return whether it arose there, in the innermost step.

        A cancellation is no failure of a step.

        Args:
            error: the error.
            step: returns the name of the step.
            error_type: the error's class, as the step records it.
        """
        if id(error) in self._failed_steps or isinstance(error, CANCELLATIONS):
            return False
        self._failed_steps[id(error)] = (error, f"{step()}: {error_type or names.OTHER}")
        return True

    def failed_step(self, error: BaseException | None) -> str | None:
        """Return the step that an error arose in, with the type of the error; None if it arose in no step."""
        step = self._failed_steps.get(id(error))
        return None if step is None else step[1]

    def listened(self, hook: Hook, advisor: str, nanoseconds: int) -> None:
        """Add to the time of an advisor's `on_chunk` or `on_event`, which are too frequent for a measurement each."""
        self.listener_ns[hook, advisor] += nanoseconds

    def listener_failed(self, error: BaseException) -> None:
        """Record that an error arose in `on_chunk` or `on_event`: it is no error of the model or the tool around it."""
        self._failed_listeners[id(error)] = error

    def is_of_listener(self, error: BaseException) -> bool:
        """Return whether an error arose in `on_chunk` or `on_event`."""
        return id(error) in self._failed_listeners or id(error.__cause__) in self._failed_listeners

    def forget_failures(self) -> None:
        """Drop the references to errors that left the run or that it handled: tracebacks hold frames."""
        self._failed_steps.clear()
        self._failed_listeners.clear()

    def chat_labels(self, model: ObservedModel) -> Attributes:
        """Return the labels every metric of the run's own calls to `model` carries; made once per run."""
        labels = self._chat_labels.get(id(model))
        if labels is None:
            labels = self._chat_labels[id(model)] = self.model_labels(names.CHAT, model)
        return labels

    def model_labels(self, operation: str, model: ObservedModel) -> Attributes:
        """Return the labels that every metric of calls to `model` carries."""
        labels: Attributes = {names.OPERATION_NAME: operation}
        put(labels, names.PROVIDER_NAME, encodable(model.provider))
        put(labels, names.REQUEST_MODEL, encodable(model.model))
        server: Attributes = {}
        copy_present_fields(model, _SERVER, server)  # such as an `ipaddress` that the application's own model has
        labels.update({name: value if isinstance(value, str | int) else str(value) for name, value in server.items()})
        return {**labels, **self.agent_label}

    def identity(self) -> Attributes:
        """Return the attributes that identify the run; ids are never metric labels."""
        identity: Attributes = {}
        copy_present_fields(self, _IDENTITY, identity)
        return identity

    def identity_on_events(self) -> Attributes:
        """Return the attributes that identify the run and who asked on log-based events, if there are such events."""
        if not self._identity and self.logger is not None:
            content = self.content if self.content is not None and self.content.capture.on_events else None
            # whole, since calls of a batch ask for it side by side
            self._identity = {**self.identity(), **self.who(content)}
        return self._identity.copy()

    def who(self, content: RunContent | None) -> Attributes:
        """Return the attributes about the principal and the actors, for spans or events that may carry `content`."""
        attributes: Attributes = {}
        if self.principal is not None:
            if names.USER_ID in self.attributes:  # the application's own stays
                content = None
            name = names.PRINCIPAL_ID if content is None else names.USER_ID
            put(attributes, name, self.recorded_principal(content))
        if self.actors:
            attributes[names.ACTORS] = self.actors
        return attributes

    def recorded_principal(self, content: RunContent | None) -> str | None:
        """Return the principal as `content` allows, which is made once: the name, or a pseudonym for no content."""
        if self.principal is None:
            return None
        is_name = content is not None
        if is_name not in self._principals:
            self._principals[is_name] = recorded_principal(self.principal, content)
        return self._principals[is_name]

    def guarded(self, emit: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function that emits telemetry; count an exception from it, and do not raise it."""
        try:
            emit(*args, **kwargs)
        except Exception as error:
            self.telemetry_failed(error)

    def record(self, measure: Callable[[Instruments], Iterable[Measurement]], context: Context | None = None) -> None:
        """Record metrics; in a finalizer, defer that, because this thread may hold the SDK's locks.

        Args:
            measure: returns the measurements.
            context: the context with the span that they belong to.
        """
        if self.instruments is None:
            return
        if is_in_finalizer():
            defer(partial(self.record, measure, context), is_measurement=True)
            return
        try:
            self.instruments.record(measure(self.instruments), context)
        except Exception as error:
            self.telemetry_failed(error)

    def telemetry_failed(self, error: Exception, what: str = SDK) -> None:
        """Count telemetry that was lost because code of the application raised an exception.

        Args:
            error: what it raised.
            what: the source of the exception, for the log.
        """
        report_failure(error, what)
        if self.instruments is not None:
            with suppress(Exception):
                self.instruments.telemetry_failures.add(1)


_OF_RUN: ContextVar[RunTelemetry | None] = ContextVar("traced_tools_telemetry_of_run", default=None)


def use_telemetry(of_run: RunTelemetry | None) -> None:
    """Set the telemetry that `current_telemetry` returns in the current context; None outside a run."""
    _OF_RUN.set(of_run)


def current_telemetry(options: TelemetryOptions | None) -> RunTelemetry:
    """Return the telemetry for code that runs inside or outside a run.

    Args:
        options: what to emit and where to send it; None for the options of the current run or, outside a run, for the
            global providers.
    """
    expect("telemetry", options, (TelemetryOptions, type(None)), "a TelemetryOptions or None")
    of_run = _OF_RUN.get() if options is None else None
    return of_run or RunTelemetry(options or TelemetryOptions(), agent="")


def show_exports_here(export_stats: Iterable[ExportStats]) -> None:
    """Report exporters in the metrics of the current run, by their stats."""
    of_run = _OF_RUN.get()
    if of_run is not None and of_run.instruments is not None:
        of_run.instruments.exports.show(export_stats)
