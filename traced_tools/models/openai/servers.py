"""The known servers with chat completions: provider, API key variable, and deviations from OpenAI's format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from traced_tools.models.codec import SchemaEnforcement


def _effort_field(level: str) -> dict[str, Any]:
    return {"reasoning_effort": level}


def _effort_of_openrouter(level: str) -> dict[str, Any]:
    return {"reasoning": {"effort": level}}


@dataclass(frozen=True)
class Server:
    """A server. The defaults describe the behavior of most servers.

    Args:
        provider: the provider that runs it, as in `gen_ai.provider.name`.
        host: its host name; subdomains belong to the same server.
        key: the environment variable of its API key.
        max_tokens: its field for the maximum tokens of an answer.
        seed: its field for the seed.
        effort: returns the fields that request a level of reasoning.
        stream_options: whether it accepts the option that requests usage on streams; if not, it always reports usage.
        output_schema: whether it supports a schema for the answer.
        enforces_schema: when it makes the answer follow the schema.
    """

    provider: str
    host: str | None = None
    key: str = "OPENAI_API_KEY"
    max_tokens: str = "max_tokens"
    seed: str = "seed"
    effort: Callable[[str], dict[str, Any]] = _effort_field
    stream_options: bool = True
    output_schema: bool = True
    enforces_schema: SchemaEnforcement = "without_tools"

    def serves(self, host: str) -> bool:
        """Return whether `host` belongs to this server."""
        return self.host is not None and (host == self.host or host.endswith(f".{self.host}"))


_KNOWN = (
    # its newer models refuse `max_tokens`: https://platform.openai.com/docs/api-reference/chat/create
    Server("openai", "api.openai.com", "OPENAI_API_KEY", max_tokens="max_completion_tokens", enforces_schema="always"),
    Server("groq", "api.groq.com", "GROQ_API_KEY", enforces_schema="never"),
    # it refuses unknown fields: https://docs.mistral.ai/api/#tag/chat
    Server("mistral_ai", "api.mistral.ai", "MISTRAL_API_KEY", seed="random_seed", stream_options=False),
    # it supports JSON output, but no schema: https://api-docs.deepseek.com/api/create-chat-completion
    Server("deepseek", "api.deepseek.com", "DEEPSEEK_API_KEY", output_schema=False),
    Server("openrouter", "openrouter.ai", "OPENROUTER_API_KEY", effort=_effort_of_openrouter, enforces_schema="never"),
    Server("huggingface", "router.huggingface.co", "HF_TOKEN", enforces_schema="never"),
    Server("perplexity", "api.perplexity.ai", "PERPLEXITY_API_KEY"),
    Server("x_ai", "api.x.ai", "XAI_API_KEY"),
    # Gemini's OpenAI-compatible API: https://ai.google.dev/gemini-api/docs/openai
    Server("gcp.gemini", "generativelanguage.googleapis.com", "GEMINI_API_KEY"),
)


def find_known_server(address: str) -> Server | None:
    """Return the known server at `address`, None if there is none."""
    host = _host(address)
    return next((server for server in _KNOWN if server.serves(host)), None)


def resolve_server(address: str, provider: str | None = None) -> Server:
    """Return the known server at `address`, else that of `provider` (behind a gateway), else one with the defaults."""
    server_of_provider = next((server for server in _KNOWN if server.provider == provider), None)
    return find_known_server(address) or server_of_provider or Server(provider or "openai")


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:  # an invalid address, which the transport reports
        return ""
