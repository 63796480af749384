"""Every exception the package raises on purpose.

    TracedToolsError
    ├── ConfigurationError        a setting that cannot work
    ├── AdvisorChainError         advisors that do not fit together
    ├── NeedsEventLoop            a blocking run awaited something only asyncio can run
    ├── ToolDefinitionError       a tool that cannot be offered to a model
    ├── InvalidArguments          arguments that do not fit a tool's schema
    ├── ToolTimeout               a tool took longer than its time-out
    ├── ToolNotFoundError         a name that is no tool's
    ├── ToolExecutionError        a tool failed and the policy says: raise
    ├── LoopLimitExceeded         a limit of the run was broken and the policy says: raise
    ├── ModelError                the model could not answer
    │   ├── ModelTimeout          no answer in time
    │   ├── RateLimited           429
    │   ├── AuthenticationError   401, 403
    │   ├── InvalidRequest        400, 404, 422
    │   └── InvalidResponse       an answer that cannot be understood
    ├── ExportFailed              events could not be sent (`traced_tools.events`)
    └── AuditError                what is wrong with an audit trail
        └── AuditUnavailable      a record did not become durable in time

No message holds a prompt, an answer, an argument, a result or another exception's text: messages travel into logs and
into the spans of whoever catches them. What a provider answered is on `ModelError.body` alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from traced_tools.advisors.exchange import ChatClientResponse
    from traced_tools.core.enums import StopReason
    from traced_tools.core.tool_result import ToolExecutionResult

T = TypeVar("T")

MOST_OF_BODY: Final = 16_384
"""The most characters of a body that a `ModelError` keeps."""
_SHORT_CODE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class TracedToolsError(Exception):
    """The base of every error this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[TracedToolsError], args: tuple[Any, ...], state: dict[str, Any]) -> TracedToolsError:
    """Make an error anew on the other side of a pickle, without its constructor, which takes other arguments."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def picklable(value: T) -> T | None:
    """Return `value`, or None if it cannot be pickled and read again, as many exceptions cannot."""
    import pickle  # imported here: most processes never need it

    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return None
    return value


class ConfigurationError(TracedToolsError, ValueError):
    """A setting that cannot work; the text names the setting and what is accepted."""


class AdvisorChainError(TracedToolsError):
    """Advisors that do not fit together, such as two tool loops in one chain."""


class NeedsEventLoop(TracedToolsError, RuntimeError):
    """A blocking run awaited something that only an asyncio event loop can finish."""


class ToolDefinitionError(TracedToolsError, ValueError):
    """A tool that cannot be offered to a model; the text names the tool and says what to change."""


class InvalidArguments(TracedToolsError):
    """Arguments that do not fit a tool's schema.

    `problems` tells the model which field and what was expected. It may name fields that the model made up, so the text
    of the error itself does not repeat it.
    """

    def __init__(self, problems: str) -> None:
        super().__init__("the arguments do not fit the tool's schema; .problems tells where")
        self.problems = problems


class ToolTimeout(TracedToolsError, TimeoutError):
    """A tool took longer than its time-out; its result, should there ever be one, is dropped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the tool took longer than its time-out of {seconds:g} s")
        self.seconds = seconds


class ToolNotFoundError(TracedToolsError):
    """A name that is no tool's: the model named one the request does not carry, or `tools=` one nobody can resolve."""


class ToolExecutionError(TracedToolsError):
    """A tool failed and the error policy says that the run must fail with it.

    The text names the tool and the error's type only. The tool's own exception, whose text may quote its arguments, is
    on `original` and is deliberately not chained: loggers and spans print chains. A pickled error has None there if
    the exception cannot be pickled.
    """

    def __init__(self, tool_name: str, error_type: str, original: BaseException | None = None) -> None:
        super().__init__(f"the tool {tool_name} failed with {error_type}; the exception is on .original")
        self.tool_name = tool_name
        self.error_type = error_type
        self.original = original

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, {**self.__dict__, "original": picklable(self.original)})


class LoopLimitExceeded(TracedToolsError):
    """A limit of the run was broken and `LoopLimits(on_limit="raise")` is in force.

    `limit` is the stop reason (such as `max_iterations`), `response` what the run had reached, and `tool_name` the tool
    whose call broke a limit of single tools (`max_calls_per_tool`, `repeated_call`), as the model wrote it. By hand,
    `response` is the one whose calls were executed, and `result` the `ToolExecutionResult`; in a run `result` is None.
    """

    def __init__(
        self,
        limit: StopReason,
        response: ChatClientResponse,
        tool_name: str | None = None,
        result: ToolExecutionResult | None = None,
    ) -> None:
        where = "response" if result is None else "result"
        super().__init__(f"the run reached its limit {limit}; what it had is on .{where}")
        self.limit = limit
        self.response = response
        self.tool_name = tool_name
        self.result = result


class ModelError(TracedToolsError):
    """The model could not answer.

    Args:
        problem: what happened, in words of ours; never the provider's own message.
        provider: the provider's name as in `gen_ai.provider.name`.
        status_code: HTTP status, when there was one.
        retryable: whether the same request may succeed later.
        request_id: the provider's id of the request, for its support desk.
        code: the provider's short error code or type; anything longer than a code is left out.
        retry_after: seconds the provider asked to wait, when it said so.
        body: what the provider answered, or the event of a stream that is wrong, when there is one. It may quote the
            prompt. The attribute `body` holds its first 16,384 characters; the error's text and its `repr` do not.
    """

    def __init__(
        self,
        problem: str,
        *,
        provider: str | None = None,
        status_code: int | None = None,
        retryable: bool = False,
        request_id: str | None = None,
        code: object = None,
        retry_after: float | None = None,
        body: str | bytes | None = None,
    ) -> None:
        self.provider = provider
        self.status_code = status_code
        self.retryable = retryable
        self.request_id = _short(request_id)
        self.code = _short(code)
        self.retry_after = retry_after
        self.body = body
        facts = {"status": status_code, "code": self.code, "request id": self.request_id}
        known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        super().__init__(f"{provider or 'the model'}: {problem}" + (f" ({known})" if known else ""))

    @property
    def body(self) -> str | None:
        """What the provider answered, or its first 16,384 characters; None when no answer is known."""
        return self._body.text

    @body.setter
    def body(self, body: str | bytes | None) -> None:
        if body is not None:
            body = body[: 4 * MOST_OF_BODY]  # a character is at most four bytes
            body = body if isinstance(body, str) else body.decode("utf-8", "replace")
            body = body[:MOST_OF_BODY]
        self._body = _Unshown(body)


class ModelTimeout(ModelError):
    """The model did not answer in time."""


class RateLimited(ModelError):
    """The provider refused the request because there were too many (429)."""


class AuthenticationError(ModelError):
    """The provider refused the key, or the key may not use this model (401, 403)."""


class InvalidRequest(ModelError):
    """The provider refused the request as wrong (400, 404, 422)."""


class InvalidResponse(ModelError):
    """The provider's answer cannot be understood, was cut short, or carried an error object."""


@dataclass(frozen=True, slots=True, repr=False)
class _Unshown:
    """A text that no `repr` shows, such as that of an error's attributes in a log."""

    text: str | None

    def __repr__(self) -> str:
        return "None" if self.text is None else f"<{len(self.text)} characters>"


def _short(value: object) -> str | None:
    """A provider's code or id, if it looks like one: free text could quote the prompt."""
    text = None if value is None else str(value)
    return text if text is not None and _SHORT_CODE.fullmatch(text) else None


class Abandoned(BaseException):
    """Thrown into a flow whose consumer went away: a stream left by `break`, a run that was closed.

    Not an error and never seen by a caller. Unlike `GeneratorExit`, which Python itself throws, it reaches the
    innermost `await`, and what the flow awaits while it cleans up is still performed.
    """


class AuditError(TracedToolsError):
    """What is wrong with an audit trail: a store that cannot be read, a key that is missing, a record not there."""


class AuditUnavailable(AuditError):
    """A record did not become durable in time, so that what it precedes must not be taken as recorded."""
