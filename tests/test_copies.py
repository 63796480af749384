"""Copying and pickling: clients and models are copied as themselves, responses with all their data."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientResponse,
    ImagePart,
    LoopLimitExceeded,
    LoopLimits,
    TextPart,
    ToolCall,
    ToolExecutionError,
)
from traced_tools import tool as as_tool
from traced_tools.core import ToolErrors
from traced_tools.models import (
    AnthropicChatModel,
    EmbeddingResponse,
    GeminiChatModel,
    GeminiEmbeddingModel,
    OllamaChatModel,
    OllamaEmbeddingModel,
    OpenAIChatModel,
    OpenAIEmbeddingModel,
    OpenAIResponsesModel,
)
from traced_tools.testing import ScriptedChatModel

HERE = "http://127.0.0.1:8123"
MODELS = (
    *(OpenAIChatModel, OpenAIResponsesModel, OpenAIEmbeddingModel, AnthropicChatModel, GeminiChatModel),
    *(GeminiEmbeddingModel, OllamaChatModel, OllamaEmbeddingModel),
)


class Coded(Exception):
    """An exception that cannot be unpickled: its constructor takes other arguments."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code} {words}")


@as_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def fail(a: int) -> None:
    """Fail."""
    raise ValueError(a)


def fail_with_a_code(a: int) -> None:
    """Fail."""
    raise Coded(a, "words")


@as_tool(result_converter=str)
def lock() -> Any:
    """Return something that cannot be pickled."""
    return Held()


class Held:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return "held"


class Around(Advisor):
    name, order = "around", 350


def asking(**settings: Any) -> ChatClient:
    calls = [
        ToolCall("add", {"a": 1, "b": 2}),
        *(ToolCall(name, {"a": 1}) for name in ("fail", "fail_with_a_code", "nothing")),
        ToolCall("lock"),
    ]
    tools = [add, fail, fail_with_a_code, lock]
    return ChatClient(
        ScriptedChatModel([calls, "done"]), tools=tools, advisors=[Around()], tool_context={"user": MARKER}, **settings
    )


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_a_deep_copy_of_a_model_is_the_model(kind: Any) -> None:
    model = kind("m", base_url=HERE)
    assert copy.deepcopy(model) is model


def test_a_deep_copy_of_a_client_is_the_client(telemetry: Telemetry) -> None:
    client = asking(telemetry=telemetry.options)
    assert copy.deepcopy(client) is client
    spec = client.prompt("?")
    assert copy.deepcopy({"agent": client, "request": spec}) == {"agent": client, "request": spec}


@dataclasses.dataclass
class State:
    """The state of an application, which it converts to a dictionary."""

    client: ChatClient
    response: ChatClientResponse


def test_a_state_with_a_client_and_a_response_can_be_turned_into_a_dictionary() -> None:
    client = ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "done"]), tools=[add])
    response = client.prompt("?").call()
    plain = dataclasses.asdict(State(client, response))
    assert plain["client"] is client
    assert plain["response"]["messages"] == response.messages


def data_of(response: ChatClientResponse) -> dict[str, Any]:
    """Return all data of a response except what belongs to the process."""
    names = [each.name for each in dataclasses.fields(response)]
    found = {name: getattr(response, name) for name in names if name not in ("run", "offered", "tool_results")}
    found |= {name: getattr(response, name) for name in ("content", "text", "run_id", "trace_id", "conversation_id")}
    kept = ("call_id", "tool", "content", "images", "decision", "outcome", "error_type", "reason_code")
    return {**found, "results": [[getattr(each, name) for name in kept] for each in response.tool_results]}


@pytest.mark.parametrize("mode", MODES)
def test_a_pickled_response_is_equal(mode: str, telemetry: Telemetry) -> None:
    client = asking(telemetry=telemetry.options)
    picture = ImagePart(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")
    response = run(mode, client.prompt([TextPart("?"), picture], conversation_id="c-1", params={"a": [1]}))
    data = pickle.dumps(response)
    again = pickle.loads(data)
    assert data_of(again) == data_of(response)
    assert again.trace_id is not None
    assert again.run.agent == response.run.agent
    assert MARKER.encode() not in data
    added, failed, coded, unknown, held = again.tool_results
    assert (added.value, type(failed.error), failed.error.args) == (3, ValueError, (1,))
    assert (coded.error, coded.error_type) == (None, response.tool_results[2].error_type)
    assert (unknown.decision, held.value, held.content) == ("unknown_tool", None, "held")


def test_a_pickled_response_keeps_the_usage_and_the_parent_of_nested_runs() -> None:
    nested: list[ChatClientResponse] = []

    def ask() -> str:
        """Ask another agent."""
        nested.append(ChatClient(ScriptedChatModel(["inner"])).prompt("?", attributes={"tags": ["a"]}).call())
        assert pickle.loads(pickle.dumps(nested[0])).run.parent_id == nested[0].run.parent_id
        return "asked"

    response = ChatClient(ScriptedChatModel([ToolCall("ask"), "done"]), tools=[ask]).prompt("?").call()
    again, inner = pickle.loads(pickle.dumps([response, *nested]))
    assert again.nested_usage == response.nested_usage is not None
    assert (inner.run.parent_id, inner.run.attributes) == (response.run_id, {"tags": ("a",)})


def chunks() -> Iterator[ChatClientResponse]:
    with asking().prompt("?").stream() as stream:
        yield from stream


def test_a_pickled_chunk_is_equal() -> None:
    found = list(chunks())
    assert found
    for chunk in found:
        assert data_of(pickle.loads(pickle.dumps(chunk))) == data_of(chunk)


def test_a_copied_response_keeps_its_run_and_its_tools() -> None:
    response = asking(tool_errors=ToolErrors()).prompt("?", params={"a": [1]}).call()
    for again in (copy.copy(response), response.replace(stop_reason="advisor")):
        assert (again.run, again.offered) == (response.run, response.offered)
    simple = ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "done"]), tools=[add]).prompt("?").call()
    deep = copy.deepcopy(simple)
    assert (deep.run, deep.offered, data_of(deep)) == (simple.run, simple.offered, data_of(simple))


def test_errors_of_a_run_can_be_pickled_with_their_attributes() -> None:
    with pytest.raises(LoopLimitExceeded) as limited:
        asking(limits=LoopLimits(max_iterations=1, on_limit="raise")).prompt("?").call()
    again = pickle.loads(pickle.dumps(limited.value))
    assert (again.limit, data_of(again.response)) == (limited.value.limit, data_of(limited.value.response))
    for kind in (ValueError, Coded):
        with pytest.raises(ToolExecutionError) as failed:
            asking(tool_errors=ToolErrors(raise_on=(kind,))).prompt("?").call()
        again = pickle.loads(pickle.dumps(failed.value))
        assert (str(again), again.error_type) == (str(failed.value), failed.value.error_type)
        assert isinstance(again.original, ValueError) is (kind is ValueError)


def test_a_pickle_is_read_in_a_process_that_has_imported_nothing() -> None:
    response = ChatClient(ScriptedChatModel(["done"])).prompt("?").call()
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).content)"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, input=pickle.dumps(response), capture_output=True, timeout=60, check=True)
    assert done.stdout == b"done\n"


def test_the_answer_of_an_embedding_model_can_be_pickled() -> None:
    response = EmbeddingResponse(((1.0, 2.0),), model="m")
    assert pickle.loads(pickle.dumps(response)) == response
