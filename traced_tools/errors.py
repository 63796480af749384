"""Every exception the package raises on purpose.

    TracedToolsError
    ├── ConfigurationError        a setting that cannot work
    ├── AdvisorChainError         advisors that cannot be combined
    ├── NeedsEventLoop            a blocking run awaited something that needs asyncio
    ├── ToolDefinitionError       a tool that cannot be offered to a model
    ├── InvalidArguments          arguments that are invalid under a tool's schema
    ├── ToolTimeout               a tool took longer than its time-out
    ├── ToolOutcomeUnknown        a tool had begun, and its outcome is unknown
    ├── InputRequired             a tool cannot finish before it is given input
    ├── NestedRunWaits            a tool returned although the run of an agent that it asked waits
    ├── ToolNotFoundError         no tool has this name
    ├── ToolExecutionError        a tool failed and the error policy is to raise
    ├── OutputValidationError     no answer is valid for the type in `output=`
    ├── EvaluationError           a model judge returned no valid verdict about an answer
    ├── LoopLimitExceeded         a run exceeded a limit and the limit policy is to raise
    ├── ModelError                the model could not answer
    │   ├── ModelTimeout          no answer in time
    │   ├── RateLimited           429
    │   ├── AuthenticationError   401, 403
    │   ├── InvalidRequest        400, 404, 422
    │   │   └── ContextOverflow   the request is longer than the model accepts
    │   └── InvalidResponse       a response that cannot be parsed
    ├── McpError                  a request to an MCP server failed
    │   ├── McpUnavailable        there is no connection to it
    │   ├── McpToolError          its tool reports that it failed
    │   ├── McpRequestError       it refused a request, or its answer cannot be read
    │   ├── McpCallLost           the connection was lost during a call, which may have run
    │   └── McpToolsChanged       its tools differ from those that are pinned
    ├── ResumeError               a run that waits for approval cannot be resumed
    ├── PendingStoreError         runs that wait for approval cannot be read, or a decision cannot be taken
    │   ├── AlreadyDecided        the call was decided before
    │   ├── NotWaiting            no such call or run waits for a decision
    │   └── PendingStoreUnavailable  the store is down or fails
    ├── ExportFailed              events could not be sent (`traced_tools.events`)
    ├── AuditError                an audit trail that cannot be read or written
    │   └── AuditUnavailable      a record did not become durable in time
    ├── ToolIndexError            the store of a tool index is down or fails
    └── ChatMemoryError           a conversation that cannot be read or appended to
        ├── ConversationConflict  the log has another version
        ├── ConversationDenied    the conversation belongs to another principal
        ├── UnreadableConversation  a stored row that cannot be read
        └── ChatMemoryUnavailable   the store is down or fails

No message contains a prompt, an answer, an argument, a result or another exception's text, because messages end up in
logs and spans. Only `ModelError.body` contains the provider's response, and `McpError.for_model` what the server says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from traced_tools.core.frozen import frozen
from traced_tools.core.pickling import picklable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traced_tools.core.enums import ResumeRefusal, StopReason
    from traced_tools.core.messages import Message, Usage
    from traced_tools.core.tool_input import PendingInput
    from traced_tools.core.tool_result import ToolExecutionResult, ToolResult

_MAX_BODY_CHARACTERS: Final = 16_384
_SHORT_CODE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class TracedToolsError(Exception):
    """Base class of every error that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[TracedToolsError], args: tuple[Any, ...], state: dict[str, Any]) -> TracedToolsError:
    """Rebuild a pickled error without calling its constructor, which takes other arguments than `args`."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigurationError(TracedToolsError, ValueError):
    """A setting that cannot work. The text names the setting and the accepted values."""


class AdvisorChainError(TracedToolsError):
    """Advisors that cannot be combined, such as two tool loops in one chain."""


class NeedsEventLoop(TracedToolsError, RuntimeError):
    """A blocking run awaited something that needs an asyncio event loop."""


class ToolDefinitionError(TracedToolsError, ValueError):
    """A tool that cannot be offered to a model. The text names the tool and what to change."""


class InvalidArguments(TracedToolsError):
    """Arguments that are invalid under a tool's schema.

    `problems` is written for the model: it names each invalid field and what is expected there. It may quote field
    names that the model invented, so the text of the error does not repeat it.
    """

    def __init__(self, problems: str) -> None:
        super().__init__("the arguments are invalid under the tool's schema; see .problems")
        self.problems = problems


class ToolTimeout(TracedToolsError, TimeoutError):
    """A tool took longer than its time-out. A result that it returns later is dropped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the tool took longer than its time-out of {seconds:g} s")
        self.seconds = seconds


class ToolOutcomeUnknown(TracedToolsError):
    """A tool had begun, and its outcome is unknown: it may have done its work, or a part of it.

    The call is not repeated. The result of the call has the outcome `unknown`.
    """


class InputRequired(TracedToolsError):
    """A tool cannot finish before it is given input. A tool raises it; no run fails with it.

    The run ends with the stop reason `awaiting_input`. When it resumes with the answers, the tool is called again with
    the same arguments, and `ToolContext.input` has the questions and the answers.

    Attributes:
        pending: what the tool asks for.
    """

    def __init__(self, pending: PendingInput) -> None:
        super().__init__("the tool asks for input")
        self.pending = pending


class NestedRunWaits(TracedToolsError):
    """A tool returned although a run that it has begun waits for approval or input, so that it has no answer.

    A tool that `ChatClient.as_tool` makes waits with its agent. A tool of your own has to resume the run or to raise an
    error.
    """

    def __init__(self, agent: str, tools: str, *, is_kept: bool) -> None:
        goes_on = "goes on from its store without this tool" if is_kept else "ends here"
        super().__init__(
            f"the agent {agent!r} has not answered, because its call of {tools} waits for a decision, and this tool "
            f"cannot wait for it; the run of the agent {goes_on}. Make the tool with `as_tool` of the agent's client"
        )


class ToolNotFoundError(TracedToolsError):
    """No tool has this name: the model called a tool not in the request, or a name in `tools=` cannot be resolved."""


class ToolExecutionError(TracedToolsError):
    """A tool failed and the error policy (`ToolErrors`) makes the run fail with it.

    The text names only the tool and the type of the error. `original` is the tool's exception, whose text may quote
    the arguments. It is not chained, because loggers and spans print chained exceptions. In a pickled error, `original`
    is None if the exception cannot be pickled.
    """

    def __init__(self, tool: str, error_type: str, original: BaseException | None = None) -> None:
        super().__init__(f"the tool {tool} failed with {error_type}; the exception is on .original")
        self.tool = tool
        self.error_type = error_type
        self.original = original

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, {**self.__dict__, "original": picklable(self.original)})


class ReachedResponse(Protocol):
    """What a run had reached when a limit ended it: a `ChatClientResponse`, which has more than this."""

    @property
    def content(self) -> str:
        """The text of the last answer."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation."""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The result of each call, in order."""

    @property
    def usage(self) -> Usage | None:
        """The tokens, if the provider reports them."""


class EvaluationError(TracedToolsError):
    """A model judge returned no valid verdict about an answer. The text names the judge."""


class LoopLimitExceeded(TracedToolsError):
    """A run exceeded a limit and `LoopLimits(on_limit="raise")` applies.

    Attributes:
        limit: the stop reason, such as `max_iterations`.
        response: the response that the run had reached. From `execute_tool_calls`, the response whose calls it ran.
        tool: the tool whose call exceeded a limit of single tools (`max_calls_per_tool`, `repeated_call`), as the
            model wrote it; None for other limits.
        result: the result of `execute_tool_calls`; None in a run.
    """

    def __init__(
        self,
        limit: StopReason,
        response: ReachedResponse,
        tool: str | None = None,
        result: ToolExecutionResult | None = None,
    ) -> None:
        where = "response" if result is None else "result"
        super().__init__(f"the run reached its limit {limit}; see .{where}")
        self.limit = limit
        self.response = response
        self.tool = tool
        self.result = result


class OutputValidationError(TracedToolsError):
    """The model's answer is not valid for the type that was passed as `output=`.

    The text names the invalid places, with names from the schema only: `*` replaces a name that the model invented.

    Attributes:
        response: the response with the last answer. Its usage is that of all attempts.
        problems: what is wrong with the last answer, as the model is told. It may quote names from the answer.
        attempts: how often the model was asked.
    """

    def __init__(
        self, response: ReachedResponse, problems: Sequence[str], places: Sequence[str], attempts: int
    ) -> None:
        often = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"the output is invalid after {often}: {', '.join(places)}; see .problems and .response")
        self.response = response
        self.problems = problems
        self.attempts = attempts


class McpError(TracedToolsError):
    """A request to an MCP server failed. The text names the server as it is configured, and never what the server says.

    Attributes:
        server: the configured name of the server.
        for_model: what the model reads of the failure, such as the text of the server; None for the error's own text.
            The error's text and its `repr` do not contain it.
    """

    def __init__(self, server: str, problem: str, for_model: str | None = None) -> None:
        super().__init__(f"the MCP server {server!r} {problem}")
        self.server = server
        self._for_model = _HiddenText(for_model)

    @property
    def for_model(self) -> str | None:
        """What the model reads of the failure; None for the error's own text."""
        return self._for_model.text


class McpUnavailable(McpError, ConnectionError):
    """There is no connection to an MCP server. The server has not received the request."""


class McpToolError(McpError):
    """A tool of an MCP server reports that it failed; `for_model` is what it reports."""


class McpRequestError(McpError):
    """An MCP server refused a request, or its answer cannot be read.

    Attributes:
        code: the code of the JSON-RPC error; None if the answer cannot be read.
    """

    def __init__(self, server: str, problem: str, for_model: str | None = None, code: int | None = None) -> None:
        super().__init__(server, problem, for_model)
        self.code = code


class McpCallLost(McpError, ToolOutcomeUnknown):
    """The connection to an MCP server was lost during a call of a tool, which may have run.

    The call was not repeated, because its tool is not known to be safe to repeat, or it was lost again.
    """


class McpToolsChanged(McpError):
    """The tools of an MCP server differ from those in the file of pinned tools.

    Attributes:
        changes: what differs, such as `search: description`, by the names that the server uses.
    """

    def __init__(self, server: str, path: str, changes: Sequence[str]) -> None:
        summary = ", ".join(changes)
        advice = f"check them, and remove {server!r} from the file to pin them"  # the file may have other servers
        super().__init__(server, f"offers other tools than {path} has pinned: {summary}; {advice}")
        self.changes: tuple[str, ...] = tuple(changes)


class ModelError(TracedToolsError):
    """The model could not answer.

    Args:
        problem: what happened, in this package's words; never the provider's message.
        provider: the provider's name as in `gen_ai.provider.name`.
        status_code: HTTP status code, if there was a response.
        retryable: whether the same request may succeed later.
        request_id: the provider's id of the request, for its support.
        code: the provider's error code or type; None if it is longer than 64 characters or contains other characters
            than a code.
        retry_after: seconds to wait before a retry, if the provider sent them.
        body: the body of the provider's response, or the invalid event of a stream, if there is one. It may quote the
            prompt. The attribute `body` holds its first 16,384 characters; the error's text and its `repr` do not.
        streamed: whether a part of the answer was streamed before the error.
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
        streamed: bool = False,
    ) -> None:
        self.provider = provider
        self.status_code = status_code
        self.retryable = retryable
        self.request_id: str | None = _code_or_none(request_id)
        self.code: str | None = _code_or_none(code)
        self.retry_after = retry_after
        self.body = body
        self.streamed = streamed
        facts = {"status": status_code, "code": self.code, "request id": self.request_id}
        details = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        super().__init__(f"{provider or 'the model'}: {problem}" + (f" ({details})" if details else ""))

    @property
    def body(self) -> str | None:
        """The first 16,384 characters of the provider's response; None if there is none."""
        return self._body.text

    @body.setter
    def body(self, body: str | bytes | None) -> None:
        if body is not None:
            body = body[: 4 * _MAX_BODY_CHARACTERS]  # a character is at most four bytes
            body = body if isinstance(body, str) else body.decode("utf-8", "replace")
            body = body[:_MAX_BODY_CHARACTERS]
        self._body = _HiddenText(body)


class ModelTimeout(ModelError):
    """The model did not answer in time."""


class RateLimited(ModelError):
    """The provider refused the request because of a rate limit (429), or a `RateLimitedModel` can't send it in time."""


class AuthenticationError(ModelError):
    """The provider refused the API key, or the key may not use this model (401, 403)."""


class InvalidRequest(ModelError):
    """The provider refused the request as invalid (400, 404, 422)."""


class ContextOverflow(InvalidRequest):
    """The request is longer than the model accepts: it has more tokens than the context, or more bytes (413).

    Shorten the conversation, for example by a compaction of the chat memory, or use a model with a larger context.
    """


class InvalidResponse(ModelError):
    """The provider's response cannot be parsed, is incomplete, or contains an error that has no other class."""


@frozen(repr=False)
class _HiddenText:
    """A text that `repr` does not show, for loggers that print an error's attributes."""

    text: str | None

    def __repr__(self) -> str:
        return "None" if self.text is None else f"<{len(self.text)} characters>"


def _code_or_none(value: object) -> str | None:
    """Return a provider's code or id if it looks like one, else None: free text could quote the prompt."""
    text = None if value is None else str(value)
    return text if text is not None and _SHORT_CODE.fullmatch(text) else None


class Abandoned(BaseException):
    """Thrown into a flow whose consumer stopped: a stream left by `break`, a closed or cancelled run.

    It is not an error and callers never see it. Unlike `GeneratorExit`, it reaches the innermost `await`, and awaits in
    the flow's clean-up are still performed.
    """


class ResumeError(TracedToolsError):
    """A run that waits for approval cannot be resumed: its state was altered or spent, or what it needs has changed.

    The text says what differs. Nothing has run.

    Attributes:
        lasting: why it can't be resumed later either, so that a pending store keeps it apart from the runs that are
            ready; None if a later or another attempt may succeed.
    """

    def __init__(self, problem: str, *, lasting: ResumeRefusal | None = None) -> None:
        super().__init__(problem)
        self.lasting = lasting


class UnknownRun(TracedToolsError, LookupError):
    """No durable run of an agent has a key.

    Attributes:
        key: the key.
        agent: the name of the agent.
    """

    def __init__(self, key: str, agent: str) -> None:
        super().__init__(f"no run of the agent {agent!r} has the key {key!r}: submit it first, with the same client")
        self.key = key
        self.agent = agent

    def __reduce__(self) -> tuple[type[UnknownRun], tuple[str, str]]:
        return UnknownRun, (self.key, self.agent)


class RunTaken(TracedToolsError):
    """The run is no longer this process's own: another one drives it, or it was withdrawn or deleted.

    Attributes:
        key: the key of the run.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"another process drives the run {key!r} now, or it was withdrawn or deleted: "
            "this one has stopped before its next step"
        )
        self.key = key

    def __reduce__(self) -> tuple[type[RunTaken], tuple[str]]:
        return RunTaken, (self.key,)


class KeyInUse(TracedToolsError):
    """A durable run was submitted with the key of another one, so it was not kept.

    Attributes:
        key: the key.
    """

    def __init__(self, key: str, difference: str) -> None:
        super().__init__(f"the store has a run with the key {key!r} {difference}: pass another key")
        self.key = key
        self._difference = difference

    def __reduce__(self) -> tuple[type[KeyInUse], tuple[str, str]]:
        return KeyInUse, (self.key, self._difference)


class QueueFull(TracedToolsError):
    """As many durable runs of a principal as the store allows wait for their first life, so a new one is refused.

    Attributes:
        agent: the name of the agent.
        most: how many may wait.
    """

    def __init__(self, agent: str, most: int) -> None:
        super().__init__(
            f"{most} runs of the agent {agent!r} for this principal have not begun, as many as most_queued of the "
            f"PendingStore allows: submit the run again later"
        )
        self.agent = agent
        self.most = most

    def __reduce__(self) -> tuple[type[QueueFull], tuple[str, int]]:
        return QueueFull, (self.agent, self.most)


class PendingStoreError(TracedToolsError):
    """A store of runs that wait for approval cannot be read, or cannot take a decision.

    The text may name the id of a call, a run or a state.
    """


class AlreadyDecided(PendingStoreError):
    """Somebody has decided about the call before, and a call is decided once.

    Attributes:
        call_id: the id of the call.
    """

    def __init__(self, call_id: str) -> None:
        super().__init__(f"the call {call_id!r} was decided before: its decision cannot be changed")
        self.call_id = call_id


class NotWaiting(PendingStoreError):
    """No call or run with this id waits for a decision: it is unknown, was resumed, or has expired."""


class PendingStoreUnavailable(PendingStoreError):
    """The store of waiting runs is down or fails. It is unknown whether it took what it was given.

    Attributes:
        original: the error of the store's driver, whose text may quote a content or an address; None if there is none.
    """

    def __init__(self, problem: str, original: Exception | None = None) -> None:
        super().__init__(problem)
        self.original = original


class StateNotKept(PendingStoreError):
    """A run paused, and the store could not keep it. Its tools have run, so keep its state elsewhere.

    Once the store is up again, pass the state to `PendingStore.put`. If the store has kept it after all, that changes
    nothing.

    Attributes:
        original: the error of the store, whose text may quote a content or an address.
    """

    def __init__(self, state: str, original: Exception) -> None:
        super().__init__(
            "the store could not keep a run that waits for approval: keep `.state` of this error, and pass it to "
            "`put` of the store once the store is up again"
        )
        self._state = _HiddenText(state)
        self.original = original

    @property
    def state(self) -> str:
        """The text with which the run is resumed. It has the whole conversation."""
        return self._state.text or ""


class AuditError(TracedToolsError):
    """An audit trail that cannot be read or written: no store, a wrong key, a missing record."""


class AuditUnavailable(AuditError):
    """A record did not become durable in time, so the step after it must not be treated as recorded."""


class ChatMemoryError(TracedToolsError):
    """A conversation that cannot be read or appended to. The text may name the conversation's id, never its owner."""


class ConversationConflict(ChatMemoryError):
    """The log of a conversation has another version than its caller expects: another caller has appended or deleted.

    Attributes:
        version: the version that the log has.
    """

    def __init__(self, conversation_id: str, expected_version: int, version: int) -> None:
        super().__init__(
            f"the log of the conversation {conversation_id!r} is not as it was at version {expected_version}, its "
            f"version is {version} now: read what has changed, and append again"
        )
        self.version = version


class ConversationDenied(ChatMemoryError):
    """The conversation belongs to another principal than the request names."""

    def __init__(self, conversation_id: str, *, has_owner: bool) -> None:
        problem = (
            "belongs to another principal: pass its owner as principal="
            if has_owner
            else "was begun without a principal: omit principal=, or choose another conversation id"
        )
        super().__init__(f"the conversation {conversation_id!r} {problem}")


class UnreadableConversation(ChatMemoryError):
    """A stored row of a conversation cannot be read. Nothing is overwritten.

    Attributes:
        conversation_id: the id of the conversation.
        row: the row, such as `entry 12`.
    """

    def __init__(self, conversation_id: str, row: str, problem: str) -> None:
        super().__init__(
            f"{row} of the conversation {conversation_id!r} cannot be read, {problem}: "
            "restore the row, or delete the conversation from the store"
        )
        self.conversation_id = conversation_id
        self.row = row


class ChatMemoryUnavailable(ChatMemoryError):
    """The store of conversations is down or fails, so nothing was read, or it is unknown whether it was appended.

    Attributes:
        original: the error of the store's driver, whose text may quote a message or an address; None if there is none.
    """

    def __init__(self, problem: str, original: Exception | None = None) -> None:
        super().__init__(problem)
        self.original = original


class ToolIndexError(TracedToolsError):
    """The store of a tool index is down or fails, or its tables have a version that this release doesn't know.

    Attributes:
        original: the error of the store's driver, whose text may quote a name or an address; None if there is none.
    """

    def __init__(self, problem: str, original: Exception | None = None) -> None:
        super().__init__(problem)
        self.original = original
