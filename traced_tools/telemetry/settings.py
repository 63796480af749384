"""What the environment says about telemetry that the OpenTelemetry SDK does not read itself."""

from __future__ import annotations

from os import environ
from typing import Final

from traced_tools.errors import ConfigurationError
from traced_tools.telemetry.words import CAPTURE_MODES, CaptureMode, Conventions

STABILITY_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
LATEST_GEN_AI: Final = "gen_ai_latest_experimental"
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def conventions() -> Conventions:
    """Return which names model calls are told by: `latest` if the environment opts in.

    The variable holds words for many conventions, separated by commas; see
    https://opentelemetry.io/docs/specs/semconv/gen-ai/
    """
    words = {word.strip() for word in environ.get(STABILITY_OPT_IN, "").split(",")}
    return "latest" if LATEST_GEN_AI in words else "stable"


def captured_by_environment() -> CaptureMode | None:
    """Return what the environment wants to be captured of contents; None when it says nothing.

    Raises:
        ConfigurationError: for another word than those of `CaptureMode`.
    """
    word = environ.get(CAPTURE_CONTENT, "").strip().upper()
    for mode in CAPTURE_MODES:
        if word == mode:
            return mode
    if word in ("", "FALSE"):
        return None
    raise ConfigurationError(f"{CAPTURE_CONTENT} must be one of {', '.join(CAPTURE_MODES)}")
