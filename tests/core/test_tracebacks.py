"""Tracebacks show a script's own frames and few frames of the package."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import traced_tools
from tests.modes import MODES, run
from traced_tools import Advisor, ChatClient, ToolCall, ToolExecutionError
from traced_tools.core import ToolErrors
from traced_tools.flow import WorkerPool
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

SCRIPT = """
import asyncio
import sys

from traced_tools import Advisor, ChatClient
from traced_tools.models import OpenAIChatModel, OpenAIEmbeddingModel
from traced_tools.testing import ReplayServer, Reply


class Mine(Advisor):
    name, order = "mine", 400

    async def advise(self, request, call_next):
        return await call_next(request)


def ask(url, mode):
    if "embed" in mode:
        model = OpenAIEmbeddingModel("m", base_url=url)
        return model.embed(["hi"]) if mode == "embed" else asyncio.run(model.aembed(["hi"]))
    spec = ChatClient(OpenAIChatModel("m", base_url=url), advisors=[Mine()]).prompt("hi")
    if mode == "call":
        return spec.call()
    if mode == "stream":
        with spec.stream() as stream:
            return list(stream)
    return asyncio.run(on_asyncio(spec, mode))


async def on_asyncio(spec, mode):
    if mode == "acall":
        return await spec.acall()
    async with spec.astream() as stream:
        return [chunk async for chunk in stream]


with ReplayServer([Reply.json({"error": {"message": "wrong key"}}, 401)]) as server:
    ask(server.url, sys.argv[1])
"""


def shown_by(path: Path, mode: str, **environment: str) -> list[str]:
    """Return the lines that the script prints to standard error, and what it was run with."""
    script = path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, mode], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


def frames_of_others(lines: list[str]) -> list[str]:
    """Return the lines of a traceback except those of the script's frames."""
    others, is_own = [], False
    for line in lines:
        if line.startswith("  File "):
            is_own = "script.py" in line
        elif not line.startswith("    "):
            is_own = False
        if not is_own:
            others.append(line)
    return others


@pytest.mark.parametrize(
    "mode", ["call", *(pytest.param(each, marks=pytest.mark.slow) for each in (*MODES[1:], "embed", "aembed"))]
)
def test_a_rejected_api_key_ends_a_script_with_a_short_traceback(mode: str, tmp_path: Path) -> None:
    lines = shown_by(tmp_path, mode)
    assert lines[-1] == "traced_tools.errors.AuthenticationError: openai: the request failed (status 401)"
    assert len(frames_of_others(lines)) < 40
    assert any("in ask" in line for line in lines)
    assert any("in advise" in line and "script.py" in line for line in lines) is ("embed" not in mode)


def test_the_debug_switch_shows_all_frames(tmp_path: Path) -> None:
    assert len(shown_by(tmp_path, "call", TRACED_TOOLS_DEBUG="1")) > 80


def divide(a: int, b: int) -> float:
    """Divide."""
    return quotient(a, b)


def quotient(a: int, b: int) -> float:
    return a / b


class Failing(Advisor):
    """Raises an error caused by one from an inner advisor."""

    name, order = "failing", 200

    async def advise(self, request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ToolExecutionError as error:
            raise LookupError("mine") from error


def names_in(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def is_own_of_package(error: BaseException | None) -> list[bool]:
    assert error is not None
    package = str(Path(traced_tools.__file__).parent)
    return [frame.filename.startswith(package) for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("mode", MODES)
def test_the_frames_of_tools_and_advisors_stay(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("divide", {"a": 1, "b": 0})])
    client = ChatClient(
        model, tools=[divide], advisors=[Failing()], tool_errors=ToolErrors(raise_on=(ZeroDivisionError,))
    )
    with pytest.raises(LookupError) as caught:
        run(mode, client.prompt("?"))
    error = caught.value
    assert names_in(error)[-1] == "advise"
    assert isinstance(error.__cause__, ToolExecutionError)
    assert names_in(error.__cause__)[0] == "advise"
    assert is_own_of_package(error.__cause__)[-1]
    assert sum(is_own_of_package(error.__cause__)) == 1
    assert names_in(error.__cause__.original)[-2:] == ["divide", "quotient"]


def test_the_frames_of_a_library_stay() -> None:
    class Reading(Advisor):
        name, order = "reading", 400

        async def advise(self, request: Any, call_next: Any) -> Any:
            return json.loads("{")

    with pytest.raises(json.JSONDecodeError) as caught:
        ChatClient(ScriptedChatModel([]), advisors=[Reading()]).prompt("?").call()
    assert names_in(caught.value)[-4:] == ["advise", "loads", "decode", "raw_decode"]


@dataclass(frozen=True)
class Frozen(Exception):
    """Forbids setting attributes, including its traceback."""

    code: int


def misplaced(code: int) -> SyntaxError:
    """Return an error that cannot be printed."""
    error = SyntaxError("", ("file", 1, 1, ""))
    error.text = code  # type: ignore[assignment]
    return error


ODD: list[Callable[[int], Exception]] = [Frozen, misplaced]


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("mode", MODES)
def test_a_tool_may_fail_with_an_unusual_error_class(
    mode: str, kind: Callable[[int], Exception], debug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_TOOLS_DEBUG", debug)
    raised = kind(7)

    def fail() -> str:
        """Fail."""
        raise raised

    response = run(mode, ChatClient(ScriptedChatModel([ToolCall("fail"), "done"]), tools=[fail]).prompt("?"))
    assert (response.content, response.tool_results[0].error) == ("done", raised)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", ["advise", "advise_tool"])
def test_an_error_of_an_unusual_class_leaves_a_run_unchanged(
    hook: str, mode: str, kind: Callable[[int], Exception]
) -> None:
    raised = kind(7)

    class Odd(Advisor):
        name, order = "odd", 400

        async def advise(self, request: Any, call_next: Any) -> Any:
            if hook == "advise":
                raise raised
            return await call_next(request)

        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            raise raised

    model = ScriptedChatModel([ToolCall("divide", {"a": 1, "b": 1}), "done"])
    loop = ToolCallingAdvisor(manager=ToolCallingManager(workers=WorkerPool(2)))
    client = ChatClient(model, tools=[divide], advisors=[Odd()], tool_calling_advisor=loop)
    with pytest.raises(type(raised)) as caught:
        run(mode, client.prompt("?"))
    assert caught.value is raised
