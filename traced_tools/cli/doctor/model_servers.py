"""The checks of model servers: their list of models, asked for with the address and the key of the application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import environ
from typing import Any, Final

import httpx

from traced_tools.cli.doctor.result import Check, Result, State, plain_url
from traced_tools.errors import ConfigurationError, ModelError
from traced_tools.flow.flow import call
from traced_tools.models.anthropic.chat import AnthropicChatModel
from traced_tools.models.gemini.chat import GeminiChatModel
from traced_tools.models.ollama.chat import OllamaChatModel
from traced_tools.models.openai.chat import OpenAIChatModel

GROUP: Final = "model server"
_MODELS: Final[dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {
    "openai": (OpenAIChatModel, ("OPENAI_BASE_URL", "OPENAI_API_KEY")),
    "anthropic": (AnthropicChatModel, ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")),
    "gemini": (GeminiChatModel, ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY", "GEMINI_API_KEY")),
    "ollama": (OllamaChatModel, ("OLLAMA_HOST", "OLLAMA_API_KEY")),
}
"""The models, and the variables that say that one is used."""


def model_server_checks(urls: Sequence[str], timeout: float) -> Iterator[Check]:
    """Yield the checks of the servers that the environment configures, and of those at `urls`.

    Args:
        urls: further servers, which speak OpenAI's API. The key is that of the environment for the server.
        timeout: seconds.
    """
    for name, (kind, variables) in _MODELS.items():
        if names := [variable for variable in variables if environ.get(variable)]:
            yield Check(GROUP, name, partial(_list_models, kind, name, " and ".join(names), timeout))
    for url in urls:
        subject = plain_url(url)
        kind = partial(OpenAIChatModel, base_url=url)
        yield Check(GROUP, subject, partial(_list_models, kind, subject, "--model-server and its key", timeout))


def _list_models(kind: Callable[..., Any], subject: str, settings: str, timeout: float) -> Iterator[Result]:
    dates: list[str | None] = []
    hooks = {"response": [lambda response: dates.append(response.headers.get("Date"))]}
    try:
        with httpx.Client(event_hooks=hooks, timeout=timeout) as client:
            model = kind("doctor", client=client, timeout=timeout, retries=0)
            for check in model.checks():
                call(check.run())
    except (ModelError, ConfigurationError) as error:
        yield Result(GROUP, subject, State.PROBLEM, str(error), f"check {settings}", _last(dates))
        return
    place = f"{model.server_address}:{model.server_port}" if model.server_port else f"{model.server_address}"
    yield Result(GROUP, subject, State.OK, f"{place} answers the request for its models", date=_last(dates))


def _last(dates: list[str | None]) -> str | None:
    return dates[-1] if dates else None
