"""Tools, advisors and calls that contain a marker wherever content can be."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.observe.runs import USAGE
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    LoopLimits,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from traced_tools.core import ToolDefinition, ToolErrors, ToolMetadata
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation, augmented
from traced_tools.tools.invocation import CallNext


def rejected(secret: str, checked: int = 0) -> str:
    """Raise, quoting the argument."""
    raise ValueError(f"cannot use {secret}")


def echo(secret: str) -> str:
    """Return the secret."""
    return secret


@tool(return_direct=True)
def hand_back(secret: str) -> str:
    """Return the secret directly."""
    return secret


class SecretiveLoop(ToolCallingAdvisor):
    """Raises in the given hook."""

    def __init__(self, raises_in: str) -> None:
        super().__init__()
        self._raises_in = raises_in

    def _hook(self, hook: str, value: Any) -> Any:
        if self._raises_in == hook:
            raise LookupError(MARKER)
        return value

    def initialize(self, request: ChatClientRequest) -> Any:
        return self._hook("initialize", request)

    def before(self, request: ChatClientRequest) -> Any:
        return self._hook("before", request)

    def after(self, response: ChatClientResponse) -> Any:
        return self._hook("after", response)

    def finalize(self, response: ChatClientResponse) -> Any:
        return self._hook("finalize", response)


class Secretive(Advisor):
    """Puts markers into the context and its messages, and raises in the given hook."""

    name, order = "secretive", 400

    def __init__(self, raises_in: str = "") -> None:
        self._raises_in = raises_in

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = await call_next(request.replace(context={**request.context, MARKER: MARKER}))
        if self._raises_in == "advise":
            raise LookupError(MARKER)
        return response

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if self._raises_in == "advise_tool":
            raise LookupError(MARKER)
        if self._raises_in == "denies":
            return call.denied(MARKER)
        if self._raises_in == "answers":
            return call.answered(MARKER, MARKER)
        if self._raises_in == "changes":
            return await call_next(call.replace(arguments=f'{{"{MARKER}": "{MARKER}"}}'))
        return await call_next(call)


class Checked(BaseModel):
    """Quotes what it is given."""

    secret: Annotated[str, AfterValidator(lambda secret: rejected(secret))]


def validated(checked: Checked) -> str:
    """Never run."""
    return ""


@tool(result_converter=lambda value: rejected(value))
def unreadable(secret: str) -> str:
    """Return what cannot be converted."""
    return secret


@tool(timeout=0.01)
async def stuck(secret: str) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return secret


@tool(requires_approval=True)
def guarded(secret: str) -> str:
    """Never run."""
    return secret


def broken_off(secret: str) -> Iterator[str]:
    """Yield, then raise."""
    yield secret
    rejected(secret)


class Unsayable(Exception):
    """Has no text, but holds one."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __str__(self) -> str:
        raise ValueError(self.secret)


def entangled(secret: str) -> str:
    """Raise a group of errors that quote the argument, with causes and notes that do."""
    errors: list[Exception] = [KeyError(secret), OSError(secret), Unsayable(secret)]
    errors[0].add_note(secret)
    raise ExceptionGroup(secret, errors) from LookupError(secret)


def unsayable(secret: str) -> str:
    """Raise an error that cannot say what it is."""
    raise Unsayable(secret)


def undecodable(secret: str) -> str:
    """Fail to read bytes that hold the argument."""
    return (secret.encode("utf-16-le") + b"\xff\xd8").decode("utf-8" if secret.isascii() else "ascii", "strict")


async def awaited(secret: str) -> str:
    """Raise in a coroutine."""
    await asyncio.sleep(0)
    raise ValueError(secret)


@tool(retries=2)
def retried(secret: str) -> str:
    """Fail with a retryable error."""
    raise ConnectionError(secret)


def encoded(secret: str) -> list[str]:
    """Return the secret as encoders write it."""
    return [base64.b64encode(secret.encode()).decode(), secret.encode("utf-16-le").hex(), repr(secret.encode())]


class Thinking(BaseModel):
    """Why the model calls a tool."""

    thought: str
    level: int = 1


def reasoned(secret: str) -> str:
    """Return the secret."""
    return secret


class RemoteTool:
    """A tool that has only a schema."""

    definition = ToolDefinition(
        name="remote",
        input_schema={"type": "object", "properties": {"n": {"multipleOf": 0.01}, "secret": {"maxLength": 2}}},
    )
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise ValueError(f"{MARKER} {tool_input}")


SECRET = {"secret": MARKER}
CONTEXT = "cOnTeXt-51b7"
"""A second value in the tool context, which is not content and is never captured."""
ESCAPED = "".join(f"\\u{ord(each):04x}" for each in MARKER)
TOOLS: list[Any] = [
    *(rejected, echo, hand_back, validated, unreadable, stuck, guarded, broken_off, RemoteTool()),
    *(entangled, unsayable, undecodable, awaited, retried, encoded),
    *augmented(reasoned, arguments=Thinking, on_arguments=lambda event: None),
]
SECRET_CALLS: dict[str, Any] = {
    "result": ToolCall("echo", SECRET, id="1"),
    "direct": ToolCall("hand_back", SECRET, id="1"),
    "failure": ToolCall("rejected", SECRET, id="1"),
    "two failures": [ToolCall("rejected", SECRET, id="1"), ToolCall("rejected", {"secret": f"2 {MARKER}"}, id="2")],
    "failure beside a success": [ToolCall("echo", SECRET, id="1"), ToolCall("rejected", SECRET, id="2")],
    "unknown": ToolCall(MARKER, SECRET, id="1"),
    "invalid": ToolCall("rejected", {"checked": MARKER, MARKER: MARKER}, id="1"),
    "no JSON": ToolCall("rejected", MARKER, id="1"),
    "mended": ToolCall("rejected", f'```json\n{{"secret": "{MARKER}", "checked": null}}\n```', id="1"),
    "validator": ToolCall("validated", SECRET, id="1"),
    "converter": ToolCall("unreadable", SECRET, id="1"),
    "time-out": ToolCall("stuck", SECRET, id="1"),
    "approval": ToolCall("guarded", SECRET, id="1"),
    "iterator": ToolCall("broken_off", SECRET, id="1"),
    "schema": ToolCall("remote", {**SECRET, MARKER: MARKER}, id="1"),
    "uncheckable": ToolCall("remote", f'{{"n": 1e400, "{MARKER}": "{MARKER}"}}', id="1"),
    "remote failure": ToolCall("remote", {"n": 1, "more": MARKER}, id="1"),
    "entangled": ToolCall("entangled", SECRET, id="1"),
    "unsayable": ToolCall("unsayable", SECRET, id="1"),
    "undecodable": ToolCall("undecodable", SECRET, id="1"),
    "awaited": ToolCall("awaited", SECRET, id="1"),
    "retried": ToolCall("retried", SECRET, id="1"),
    "encoded": ToolCall("encoded", SECRET, id="1"),
    "escaped": ToolCall("rejected", f'{{"secret": "{ESCAPED}"}}', id="1"),
    "reasoned": ToolCall("reasoned", {**SECRET, "thought": MARKER}, id="1"),
    "reasoned badly": ToolCall("reasoned", {**SECRET, "thought": [MARKER], "level": MARKER, MARKER: MARKER}, id="1"),
    "reasoned without a tool's argument": ToolCall("reasoned", {"thought": MARKER, "secret": [MARKER]}, id="1"),
    "text beside": [MARKER, ToolCall("echo", SECRET, id="1")],
    "model": RuntimeError(MARKER),
}
POLICIES: dict[str, ToolErrors] = {
    "answer": ToolErrors(),
    "raise": ToolErrors(always_raise=True, unknown_tool="raise"),
    "raise on": ToolErrors(raise_on=(ValueError,)),
    "message": ToolErrors(message=lambda name, error: f"{MARKER} {name} {error}"),
}


def secret_spec(
    telemetry: Telemetry, what: str, policy: str, raises_in: str, limits: LoopLimits, advisors: Sequence[Advisor] = ()
) -> Any:
    model = ScriptedChatModel([SECRET_CALLS[what], MARKER], usage=USAGE)
    client = ChatClient(
        model,
        system=MARKER,
        tools=TOOLS,
        advisors=[*advisors, Secretive(raises_in)],
        tool_calling_advisor=SecretiveLoop(raises_in),
        tool_context={f"{CONTEXT} {MARKER}": f"{CONTEXT} {MARKER}"},
        options=ChatOptions(extra={MARKER: MARKER}),
        telemetry=telemetry.options,
        tool_errors=POLICIES[policy],
        limits=limits,
    )
    return client.prompt(MARKER, tool_context={"token": f"{CONTEXT} {MARKER}"}, params={MARKER: MARKER})
