"""The address of an Ollama server, its key, and whole loops over a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models import recorded
from tests.modes import run
from traced_tools import AuthenticationError, ChatClient, ConfigurationError, ModelError
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import OllamaChatModel
from traced_tools.testing import ReplayServer, Reply

KEY = "the-key"
SECRET = "the-secret-in-the-body"
FINE = {"message": {"content": "fine"}, "done": True}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_HOST", "OLLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def place(model: OllamaChatModel) -> tuple[str | None, int | None]:
    return model.server_address, model.server_port


def test_the_default_address_is_this_machine() -> None:
    assert place(OllamaChatModel("m")) == ("127.0.0.1", 11434)
    assert OllamaChatModel("m").provider == "ollama"


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("", "127.0.0.1", 11434),
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("10.0.0.5", "10.0.0.5", 11434),
        (":8080", "127.0.0.1", 8080),
        ("gpu.example.org", "gpu.example.org", 11434),
        ("gpu.example.org/ollama", "gpu.example.org", 11434),
        ("http://gpu.example.org", "gpu.example.org", 80),
        ("https://gpu.example.org/", "gpu.example.org", 443),
        ("https://user:word@gpu.example.org", "gpu.example.org", 443),
        (' "http://gpu.example.org:8080" ', "gpu.example.org", 8080),
        ("::1", "::1", 11434),
        ("[::1]", "::1", 11434),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_the_variable_may_omit_scheme_and_port(
    monkeypatch: pytest.MonkeyPatch, host: str, address: str, port: int
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert place(OllamaChatModel("m")) == (address, port)


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("http://0.0.0.0:11434", "127.0.0.1"), ("::", "::1"), ("[::]:11434", "::1")],
)
def test_an_address_for_all_interfaces_becomes_this_machine(
    monkeypatch: pytest.MonkeyPatch, host: str, address: str
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert place(OllamaChatModel("m")) == (address, 11434)


def test_a_passed_address_overrides_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "10.0.0.5")
    assert place(OllamaChatModel("m", base_url="http://127.0.0.1:1")) == ("127.0.0.1", 1)


@pytest.mark.parametrize("ending", ["", "/", "/api", "/api/"])
def test_the_address_may_end_with_api_as_in_ollamas_documentation(ending: str) -> None:
    with ReplayServer([Reply.json(FINE)]) as server, OllamaChatModel("m", base_url=server.url + ending) as model:
        assert model.call(recorded.REQUEST).message.text == "fine"
        assert server.requests[0].path == "/api/chat"


@pytest.mark.parametrize("host", ["ftp://gpu.example.org", "not an address", "gpu:port"])
def test_an_invalid_address_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigurationError, match="http"):
        OllamaChatModel("m")


def test_the_key_is_sent_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayServer([Reply.json(FINE)] * 3) as server:
        for settings in ({}, {"api_key": KEY}):
            with OllamaChatModel("m", base_url=server.url, **settings) as model:
                model.call(recorded.REQUEST)
        monkeypatch.setenv("OLLAMA_API_KEY", KEY)
        with OllamaChatModel("m", base_url=server.url) as model:
            model.call(recorded.REQUEST)
            assert KEY not in repr(model) + repr(vars(model))
        assert [request.headers.get("Authorization") for request in server.requests] == [None, *[f"Bearer {KEY}"] * 2]


@pytest.mark.parametrize("host", ["ollama.com", "https://ollama.com", "https://ollama.com/api"])
def test_the_cloud_needs_a_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigurationError, match="OLLAMA_API_KEY"):
        OllamaChatModel("m")
    assert place(OllamaChatModel("m", api_key=KEY)) == ("ollama.com", 443)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (401, AuthenticationError), (404, InvalidRequest), (500, ModelError)]
)
def test_an_error_answer_raises_its_class_and_quotes_nothing(mode: str, status: int, kind: type[ModelError]) -> None:
    with ReplayServer([Reply.json({"error": f"model '{SECRET}' not found"}, status)]) as server:
        model = OllamaChatModel("m", base_url=server.url, retries=0)
        with pytest.raises(ModelError) as caught:
            run(mode, ChatClient(model).prompt("hi"), model)
    assert (type(caught.value), caught.value.status_code, caught.value.code) == (kind, status, None)
    assert SECRET not in str(caught.value) + repr(caught.value)


def replies(mode: str, *messages: dict[str, Any]) -> list[Reply]:
    """Return a server's answers; in a stream the end comes on a line of its own."""
    end = {"done": True, "done_reason": "stop"}
    if "stream" not in mode:
        return [Reply.json({"message": message, **end}) for message in messages]
    streams = [[{"message": message, "done": False}, {"message": {"content": ""}, **end}] for message in messages]
    bodies = ["".join(f"{json.dumps(line)}\n" for line in lines).encode() for lines in streams]
    return [Reply(body, content_type="application/x-ndjson") for body in bodies]


@pytest.mark.parametrize("given", [{"id": "call_7"}, {}])
def test_a_loop_runs_its_calls_and_sends_their_results(mode: str, given: dict[str, str]) -> None:
    def weather(city: str) -> str:
        return f"weather of {city}"

    call = {**given, "function": {"name": "weather", "arguments": {"city": "Århus"}}}
    with ReplayServer(replies(mode, {"tool_calls": [call]}, {"content": "It rains."})) as server:
        model = OllamaChatModel("m", base_url=server.url, retries=0)
        response = run(mode, ChatClient(model, tools=[weather]).prompt("hi"), model)
        first, second = server.requests
    assert (response.content, response.stop_reason, first.path) == ("It rains.", "answered", "/api/chat")
    answered = {f"tool_call_{name}": value for name, value in given.items()}
    assert second.json()["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "weather of Århus", "tool_name": "weather", **answered},
    ]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_in_another_format_is_an_invalid_response(mode: str) -> None:
    with ReplayServer([Reply(b"<html>", content_type="text/html")]) as server:
        model = OllamaChatModel("m", base_url=server.url, retries=0)
        with pytest.raises(InvalidResponse, match="the answer is not a stream"):
            run(mode, ChatClient(model).prompt("hi"), model)
