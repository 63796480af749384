"""The servers that speak chat completions: who runs them, whose key they take, and where they go a way of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


def _effort(level: str) -> dict[str, Any]:
    return {"reasoning_effort": level}


def _effort_of_openrouter(level: str) -> dict[str, Any]:
    return {"reasoning": {"effort": level}}


@dataclass(frozen=True)
class Server:
    """A server, by default one that does as most do.

    Args:
        provider: who runs it, as in `gen_ai.provider.name`.
        host: where it is; subdomains are the same server's.
        key: the variable that holds its key.
        max_tokens: what it calls the limit of an answer.
        seed: what it calls the seed.
        effort: returns the fields that ask for so much reasoning.
        stream_options: whether it takes the wish for usage on streams; if not, it reports usage unasked.
        output_schema: whether it can hold an answer to a schema.
    """

    provider: str
    host: str | None = None
    key: str = "OPENAI_API_KEY"
    max_tokens: str = "max_tokens"
    seed: str = "seed"
    effort: Callable[[str], dict[str, Any]] = _effort
    stream_options: bool = True
    output_schema: bool = True

    def runs(self, host: str) -> bool:
        """Return whether `host` is this server's."""
        return self.host is not None and (host == self.host or host.endswith(f".{self.host}"))


_KNOWN = (
    # its newer models refuse `max_tokens`: https://platform.openai.com/docs/api-reference/chat/create
    Server("openai", "api.openai.com", "OPENAI_API_KEY", max_tokens="max_completion_tokens"),
    Server("groq", "api.groq.com", "GROQ_API_KEY"),
    # it refuses fields that it does not know: https://docs.mistral.ai/api/#tag/chat
    Server("mistral_ai", "api.mistral.ai", "MISTRAL_API_KEY", seed="random_seed", stream_options=False),
    # it knows JSON, but no schema: https://api-docs.deepseek.com/api/create-chat-completion
    Server("deepseek", "api.deepseek.com", "DEEPSEEK_API_KEY", output_schema=False),
    Server("openrouter", "openrouter.ai", "OPENROUTER_API_KEY", effort=_effort_of_openrouter),
    Server("huggingface", "router.huggingface.co", "HF_TOKEN"),
    Server("perplexity", "api.perplexity.ai", "PERPLEXITY_API_KEY"),
    Server("x_ai", "api.x.ai", "XAI_API_KEY"),
    # Gemini models in OpenAI's language: https://ai.google.dev/gemini-api/docs/openai
    Server("gcp.gemini", "generativelanguage.googleapis.com", "GEMINI_API_KEY"),
)


def known_server(address: str) -> Server | None:
    """Return the server at `address`, None for one that is not known."""
    host = _host(address)
    return next((server for server in _KNOWN if server.runs(host)), None)


def server_of(address: str, provider: str | None = None) -> Server:
    """Return the server at `address`; where none is known, the one that `provider` runs, which a gateway may hide."""
    named = next((server for server in _KNOWN if server.provider == provider), None)
    return known_server(address) or named or Server(provider or "openai")


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:  # no address: that is the transport's to say
        return ""
