"""Who answers what an MCP server asks back: a user, a model and a list of folders of the application.

A question of a server is a call like those of a model: it passes the advisors of the run, so that policies decide about
it, and it is observed and audited. The tools of these calls have the names of the protocol's methods.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitResult,
    ImageContent,
    InputResponse,
    ListRootsResult,
    Root,
    SamplingMessage,
    TextContent,
)
from pydantic import FileUrl

from traced_tools.core.approval import Undecided
from traced_tools.core.checks import expect, expect_callable, expect_each, expect_whole
from traced_tools.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    UserMessage,
    encodable,
    encodable_json,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.core.tool_input import InputMethod, InputRequest, PendingInput, Provide
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import InputRequired
from traced_tools.flow.steps import perform
from traced_tools.models.base import ChatModel, ChatRequest
from traced_tools.models.model_call import call_model
from traced_tools.run.context import current_run
from traced_tools.tools.approval import answer_problem
from traced_tools.tools.flow_tool import FlowToolCallback
from traced_tools.tools.model_input import ToollessInput

Entered = Mapping[str, Any] | Undecided | None
Elicit = Callable[[str, Mapping[str, Any]], Entered | Awaitable[Entered]]
"""Takes what a user is told and the JSON Schema of what the user enters.

It returns what the user has entered, None if the user declines, or `Undecided()` if nobody can answer now. It may be
async.
"""
Folder = str | os.PathLike[str]
Folders = Iterable[Folder] | Undecided
Roots = Callable[[], Folders | Awaitable[Folders]]
"""Returns the folders that a server may work in, as paths or `file://` URLs, or `Undecided()`. It may be async."""

_DESCRIPTIONS: Final[Mapping[InputMethod, str]] = {
    "elicitation/create": "Ask the user for input, on behalf of an MCP server.",
    "sampling/createMessage": "Ask a model, on behalf of an MCP server.",
    "roots/list": "List the folders that an MCP server may work in.",
}
_STOP_REASONS: Final = {"stop": "endTurn", "length": "maxTokens"}


@dataclass(frozen=True)
class Sampling:
    """A model that answers the samplings of MCP servers, within limits.

    Args:
        model: the model. Its tokens count for the run that calls the server.
        max_tokens: the maximum number of tokens of an answer, whatever the server asks for.
        max_requests: the maximum number of samplings during one call of a tool.
    """

    model: ChatModel
    max_tokens: int = 4_096
    max_requests: int = 10

    def __post_init__(self) -> None:
        expect("model", self.model, ChatModel, "a ChatModel")
        expect_whole("max_tokens", self.max_tokens, 1)
        expect_whole("max_requests", self.max_requests, 1)


@dataclass(frozen=True)
class Sampled:
    """What a model has answered.

    Attributes:
        text: the text of the answer.
        model: the model that answered.
        stop_reason: why it stopped, as MCP names it.
    """

    text: str = field(repr=False)
    model: str
    stop_reason: str


class Answering:
    """Answers the questions of one server.

    Args:
        server: the configured name of the server.
        elicit: asks a user; None if nobody can be asked during a call.
        sample: the model that answers samplings; None if none does.
        roots: returns the folders that the server may work in; None if it is not told any.
    """

    def __init__(self, server: str, elicit: Elicit | None, sample: Sampling | None, roots: Roots | None) -> None:
        expect_callable("elicit", elicit)
        expect_callable("roots", roots)
        expect("sample", sample, (Sampling, type(None)), "a ChatModel, a Sampling or None")
        self.elicit = elicit
        self.sample = sample
        self.roots = roots
        self._server = server

    @property
    def is_registered(self) -> bool:
        """Whether the application answers anything during a call."""
        return self.elicit is not None or self.sample is not None or self.roots is not None

    def tool(self, question: InputRequest, provided: Provide | None = None) -> FlowToolCallback:
        """Return the tool that answers a question, with the provided answer, if there is one."""
        method = question.method

        async def answer(traced_tools_context: ToolContext, **params: Any) -> Any:
            reply = await self._answer(method, params) if provided is None else provided.answers[question.key]
            if isinstance(reply, Undecided):
                raise InputRequired(PendingInput(requests=(question,)))
            return reply

        return FlowToolCallback(
            answer,
            definition=ToolDefinition(name=method, description=_DESCRIPTIONS[method], input_schema={"type": "object"}),
            metadata=ToolMetadata(source=self._server),
            result_converter=_as_text,
        )

    async def _answer(self, method: InputMethod, params: Mapping[str, Any]) -> Any:
        """Return the answer to a question as JSON, as a flow; `Undecided()` if no answer is possible now."""
        if method == "elicitation/create" and self.elicit is not None and params.get("mode", "form") == "form":
            return await self._ask_user(self.elicit, params)
        if method == "sampling/createMessage" and self.sample is not None:
            return await _sample(self.sample, params)
        if method == "roots/list" and self.roots is not None:
            folders: Any = await perform(self.roots)
            return folders if isinstance(folders, Undecided) else _urls(folders)
        return Undecided()

    async def _ask_user(self, elicit: Elicit, params: Mapping[str, Any]) -> Any:
        question = InputRequest(key="elicitation", method="elicitation/create", params=params)
        answer: Any = await perform(elicit, question.message or "", dict(question.schema or {}))
        if answer is None or isinstance(answer, Undecided):
            return answer
        expect("what elicit returns", answer, Mapping, "a mapping of what the user has entered, None or Undecided()")
        if problem := answer_problem(question, dict(answer)):
            raise ValueError(f"what elicit returns is no answer to the question: {problem}")
        return dict(answer)


def response_of(question: InputRequest, result: ToolResult) -> InputResponse | None:
    """Return the response to a server's question; None for a question that the application does not answer.

    Args:
        question: the question.
        result: the result of the call that answers the question.
    """
    method = question.method
    is_answered = result.ok or result.decision == "answered"
    value = _answer_value(result)
    if method == "roots/list":
        return _roots_result(map(_url, value if is_answered and isinstance(value, list | tuple) else ()))
    if method == "elicitation/create":
        if isinstance(value, Mapping) and is_answered:
            is_form = question.params.get("mode", "form") == "form"  # which servers need even if it is empty
            return ElicitResult(action="accept", content=encodable_json(dict(value)) if is_form else None)
        return ElicitResult(action="cancel" if result.error_type is not None else "decline")
    if not is_answered:
        return None
    sampled = value if isinstance(value, Sampled) else Sampled(result.content, "unknown", "endTurn")
    content = TextContent(text=encodable(sampled.text))
    return CreateMessageResult(role="assistant", content=content, model=sampled.model, stop_reason=sampled.stop_reason)


def _answer_value(result: ToolResult) -> Any:
    """Return the answer, or what an advisor has made of its text."""
    if _as_text(result.value) == result.content:
        return result.value
    try:
        return json.loads(result.content)
    except ValueError:
        return None


async def listed_roots(roots: Roots) -> ListRootsResult:
    """Return the folders that a server may work in, as a flow."""
    folders: Any = await perform(roots)
    return _roots_result([] if isinstance(folders, Undecided) else _urls(folders))


async def _sample(sampling: Sampling, params: Mapping[str, Any]) -> Sampled:
    """Return the answer of a model, as a flow."""
    request = CreateMessageRequestParams.model_validate(params)
    run = current_run()
    assert run is not None
    messages = _messages(request)
    options = ChatOptions(
        max_tokens=min(request.max_tokens, sampling.max_tokens),
        temperature=request.temperature,
        stop=tuple(request.stop_sequences) if request.stop_sequences else None,
    )
    model = sampling.model
    answer = await call_model(run, model, ChatRequest(messages, options=options), ToollessInput(messages, options))
    reason = _STOP_REASONS.get(answer.finish_reason or "stop", "endTurn")
    return Sampled(answer.message.text, answer.model or model.model, reason)


def _messages(request: CreateMessageRequestParams) -> tuple[Message, ...]:
    instructions = [SystemMessage(request.system_prompt)] if request.system_prompt else []
    return (*instructions, *map(_message, request.messages))


def _message(message: SamplingMessage) -> Message:
    parts = [_part(block) for block in message.content_as_list]
    if message.role == "user":
        return UserMessage(parts)
    return AssistantMessage("".join(part.text for part in parts if isinstance(part, TextPart)))


def _part(block: object) -> TextPart | ImagePart:
    if isinstance(block, TextContent):
        return TextPart(block.text)
    if isinstance(block, ImageContent):
        return ImagePart(data=b64decode(block.data), media_type=block.mime_type)
    raise TypeError(f"a model is asked with texts and images only, not {type(block).__name__}")


def _urls(folders: Any) -> list[str]:
    if isinstance(folders, str | os.PathLike):
        raise TypeError("what roots returns must be a list of folders, not one folder: return [folder]")
    expect_each("what roots returns", folders, (str, os.PathLike), "a path or a file:// URL")
    return [_url(folder) for folder in folders]


def _roots_result(urls: Iterable[str]) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl(url)) for url in urls])


def _url(folder: Folder) -> str:
    text = os.fspath(folder)
    if "://" in text and not text.startswith("file://"):
        raise ValueError("a folder must be a path or a file:// URL, and not a URL of another kind")
    return text if text.startswith("file://") else Path(text).absolute().as_uri()


def _as_text(answer: Any) -> str:
    if isinstance(answer, Sampled):
        return answer.text
    return answer if isinstance(answer, str) else json.dumps(answer)
