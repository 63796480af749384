"""Programs that others instrument: `python -m tests.judges.dialects_app DIALECT PART OTLP_URL CONTENT`.

For each line of the input, the part `client`, a client of OpenAI's, asks for an answer, a streamed one, one that fails
and an embedding. The part `agent` runs an agent three times: with a tool that works, with one that fails, and with a
model that fails. Each part is a process, as the instrumentors of both would record the model calls of agents. All
prompts, arguments, results and errors hold `CONTENT`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import logfire
import openai
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openinference.instrumentation import using_attributes
from openinference.instrumentation.langchain import LangChainInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.langchain import LangchainInstrumentor as LangChainOfOpenLLMetry
from opentelemetry.instrumentation.openai import OpenAIInstrumentor as OpenAIOfOpenLLMetry
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent

_, DIALECT, PART, URL, CONTENT = sys.argv
spans = BatchSpanProcessor(OTLPSpanExporter(f"{URL}/v1/traces"))
reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{URL}/v1/metrics"))


def get_weather(city: str) -> str:
    """Return the weather."""
    if city.startswith("Atlantis"):
        raise LookupError(f"no weather in {city}: {CONTENT}")
    return f"sunny {CONTENT}"


def ask_client() -> None:
    """Ask with a client of OpenAI's."""
    client, messages = openai.OpenAI(max_retries=0), [{"role": "user", "content": f"Hello {CONTENT}"}]
    create: Callable[..., Any] = client.chat.completions.create
    create(model="gpt-x", messages=messages)
    list(create(model="gpt-x", messages=messages, stream=True, stream_options={"include_usage": True}))
    with suppress(openai.BadRequestError):
        create(model="gpt-x", messages=[{"role": "user", "content": f"Refuse {CONTENT}"}])
    client.embeddings.create(model="embed-x", input=[f"text {CONTENT}"])


def run_agent(run: Callable[[str], object]) -> None:
    """Run an agent three times."""
    for question in ("Weather in Lisbon?", "Weather in Atlantis?", "Refuse"):
        with suppress(Exception):
            run(f"{question} {CONTENT}")


def run_langchain() -> None:
    """Run an agent of LangChain's."""
    agent = create_agent(ChatOpenAI(model="gpt-x", max_retries=0), [get_weather], name="travel")
    config: Any = {"configurable": {"thread_id": "c-1"}, "metadata": {"session_id": "c-1"}}
    run_agent(lambda text: agent.invoke({"messages": [{"role": "user", "content": text}]}, config=config))


def run_pydantic_ai() -> None:
    """Run an agent of pydantic-ai's."""
    agent = Agent("openai-chat:gpt-x", name="travel", tools=[get_weather])
    run_agent(lambda text: agent.run_sync(text, conversation_id="c-1"))


def with_instrumentor(instrumentor: Any) -> None:
    """Have an instrumentor record what is played."""
    tracers = TracerProvider()
    tracers.add_span_processor(spans)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))
    instrumentor.instrument()


def with_logfire() -> None:
    """Have logfire record what is played."""
    logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[spans],
        metrics=logfire.MetricsOptions(additional_readers=[reader]),
    )
    if PART == "client":
        logfire.instrument_openai()
    else:
        logfire.instrument_pydantic_ai()


def main() -> None:
    """Play the part for each line of the input, and print a line when everything is sent."""
    if DIALECT == "openinference":
        with_instrumentor(OpenAIInstrumentor() if PART == "client" else LangChainInstrumentor())
    elif DIALECT == "openllmetry":
        with_instrumentor(OpenAIOfOpenLLMetry() if PART == "client" else LangChainOfOpenLLMetry())
    else:
        with_logfire()
    play = ask_client if PART == "client" else run_pydantic_ai if DIALECT == "logfire" else run_langchain
    for _ in sys.stdin:
        with using_attributes(session_id="c-1", user_id=CONTENT):  # which OpenInference alone reads
            play()
        assert spans.force_flush()
        assert reader.force_flush()
        print("sent", flush=True)


if __name__ == "__main__":
    main()
