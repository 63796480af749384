"""An answer that ran out of tokens: what of its calls is run."""

from __future__ import annotations

import pytest

from tests.modes import MODES, run
from traced_tools import AssistantMessage, ChatClient, ChatClientResponse, TextPart, ToolCall
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel


def cut(mode: str, *calls: ToolCall, reason: str = "length") -> tuple[list[str], ChatClientResponse]:
    """Run an answer that ends with `calls`; return the folders that were emptied, and the response."""
    emptied: list[str] = []

    def empty(folder: str = "/") -> None:
        """Delete everything in a folder."""
        emptied.append(folder)

    answer = ChatResponse(AssistantMessage([TextPart("I clean up."), *calls]), finish_reason=reason)
    model = ScriptedChatModel([answer, "Done."])
    return emptied, run(mode, ChatClient(model, tools=[empty]).prompt("Clean up"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arguments", ["", "{}", " {} "])
def test_a_call_that_was_cut_off_before_its_arguments_is_not_run(mode: str, arguments: str) -> None:
    emptied, response = cut(mode, ToolCall("empty", arguments, "c1"))
    assert emptied == []
    assert (response.content, response.finish_reason) == ("I clean up.", "length")


@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_arguments_were_cut_off_is_reported_to_the_model_and_not_run(mode: str) -> None:
    emptied, response = cut(mode, ToolCall("empty", '{"folder": "/tm', "c1"))
    assert emptied == []
    assert [result.decision for result in response.tool_results] == ["invalid_arguments"]
    assert response.content == "Done."


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_before_one_that_was_cut_off_are_run(mode: str) -> None:
    emptied, response = cut(mode, ToolCall("empty", {"folder": "/tmp"}, "c1"), ToolCall("empty", "", "c2"))
    assert emptied == ["/tmp"]
    assert response.content == "Done."


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_arguments_in_an_answer_that_is_whole_is_run(mode: str) -> None:
    emptied, _ = cut(mode, ToolCall("empty", "{}", "c1"), reason="tool_call")
    assert emptied == ["/"]
