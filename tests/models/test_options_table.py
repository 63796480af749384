"""The table of options in the docs matches what is sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.models.samples import SAMPLES, Sample
from traced_tools import ChatOptions, ConfigurationError, UserMessage
from traced_tools.core import ToolDefinition
from traced_tools.models import ChatRequest
from traced_tools.testing import ReplayServer, Reply

PAGE = Path(__file__).parents[2] / "docs/details/models-by-provider.md"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 5,
    "stop": ("x",),
    "seed": 1,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "output_schema": SCHEMA,
}
TOOL = ToolDefinition(name="weather", description="Return the weather.", input_schema=SCHEMA)


def table() -> dict[tuple[str, str], str]:
    """Return the cells of the table, by option and class."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    start = next(number for number, cells in enumerate(lines) if cells[0] == "option")
    _, *models = [cell.strip("`") for cell in lines[start]]
    rows = {cells[0].strip("`"): cells[1:] for cells in lines[start + 1 :] if cells[0].strip("`") in VALUES}
    return {(option, model): cell for option, cells in rows.items() for model, cell in zip(models, cells, strict=True)}


def sent(sample: Sample, options: ChatOptions) -> Any:
    """Return the body of a request with `options`."""
    body = sample.body(sample.closing, streamed=False)
    with ReplayServer([Reply(body)]) as server, sample.model_at(server.url) as model:
        model.call(ChatRequest((UserMessage("hi"),), (TOOL,), options))
        return server.requests[0].json()


def test_the_table_contains_every_option_and_every_provider() -> None:
    assert set(table()) == {(option, repr(sample)) for option in VALUES for sample in SAMPLES}
    assert set(VALUES) | {"extra"} == set(ChatOptions.model_fields)


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_an_option_is_sent_or_refused_as_the_table_documents(sample: Sample, option: str) -> None:
    cell = table()[option, repr(sample)]
    options = ChatOptions(**{option: VALUES[option]})
    if cell.startswith("refused"):
        with pytest.raises(ConfigurationError, match=option):
            sent(sample, options)
        return
    (path,) = re.findall("`([^`]+)`", cell)
    found, without = sent(sample, options), sent(sample, ChatOptions())
    for name in path.split("."):
        assert name in found
        found, without = found[name], (without or {}).get(name)
    assert found != without
