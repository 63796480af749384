"""A scripted model of LangChain, and the forms in which its agents run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from tests.integrations.small_agent import MODEL, PROVIDER, QUESTION
from tests.waiting import patiently
from traced_tools.models import ChatResponse


class Script(BaseChatModel):
    """A model of LangChain that gives the answers of a script, one after the other; an exception is raised.

    Attributes:
        asked: the conversations it was sent.
        offered: the names of the tools of each request.
    """

    script: list[Any]
    asked: list[list[BaseMessage]] = Field(default_factory=list)
    offered: list[list[str]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": PROVIDER, "ls_model_name": MODEL, "ls_model_type": "chat"}

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(offered=[tool.name for tool in tools])

    def _answer(self, messages: list[BaseMessage], offered: list[str]) -> AIMessage:
        self.asked.append(messages)
        self.offered.append(offered)
        answer = self.script.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, AIMessage)
        return answer

    def _generate(self, messages: list[BaseMessage], *_: Any, offered: Any = (), **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, list(offered)))])

    def _stream(
        self, messages: list[BaseMessage], *_: Any, run_manager: Any = None, offered: Any = (), **__: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages, list(offered))
        calls = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
            for index, call in enumerate(answer.tool_calls)
        ]
        pieces = [AIMessageChunk(piece) for piece in str(answer.content).split(" ")] + [
            AIMessageChunk(
                "",
                tool_call_chunks=calls,
                usage_metadata=answer.usage_metadata,
                response_metadata=answer.response_metadata,
                id=answer.id,
            )
        ]
        for piece in pieces:
            chunk = ChatGenerationChunk(message=piece)
            if run_manager is not None:
                run_manager.on_llm_new_token(str(piece.content), chunk=chunk)
            yield chunk


def answer(response: ChatResponse) -> AIMessage:
    """Return an answer as LangChain has it."""
    usage = response.usage
    assert usage is not None
    return AIMessage(
        response.message.text,
        id=response.id,
        tool_calls=[
            {"name": call.name, "args": json.loads(call.arguments), "id": call.id} for call in response.tool_calls
        ],
        usage_metadata={
            "input_tokens": usage.input_tokens or 0,
            "output_tokens": usage.output_tokens or 0,
            "total_tokens": usage.total_tokens or 0,
        },
        response_metadata={"finish_reason": "tool_calls" if response.tool_calls else "stop", "model_name": MODEL},
    )


def asks_for(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    """Return an answer that asks for calls, by the name of the tool and the arguments; their ids are c1, c2, …."""
    return AIMessage(
        "", tool_calls=[{"name": name, "args": args, "id": f"c{index}"} for index, (name, args) in enumerate(calls, 1)]
    )


MODES = ("invoke", "ainvoke", "stream", "astream")


def run(mode: str, agent: Any, question: Any = QUESTION, config: Any = None) -> Any:
    """Run an agent in one of the forms that LangGraph has; return its state. A stream is one of messages."""
    return (
        asyncio.run(patiently(arun(mode, agent, question, config)))
        if mode[0] == "a"
        else drain(mode, agent, question, config)
    )


def drain(mode: str, agent: Any, question: Any, config: Any) -> Any:
    asked = {"messages": question} if isinstance(question, str) else question
    if mode == "invoke":
        return agent.invoke(asked, config)
    parts = list(agent.stream(asked, config, stream_mode=["messages", "values"]))
    return [state for kind, state in parts if kind == "values"][-1]


async def arun(mode: str, agent: Any, question: Any = QUESTION, config: Any = None) -> Any:
    asked = {"messages": question} if isinstance(question, str) else question
    if mode == "ainvoke":
        return await agent.ainvoke(asked, config)
    parts: AsyncIterator[Any] = agent.astream(asked, config, stream_mode=["messages", "values"])
    return [state async for kind, state in parts if kind == "values"][-1]
