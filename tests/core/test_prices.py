"""Prices of model calls."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

import pytest
from genai_prices import Usage as ListedUsage
from genai_prices.data import providers
from genai_prices.types import ModelInfo, ModelPrice, Provider, Tier, TieredPrices
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core import prices
from traced_tools.core.messages import Usage
from traced_tools.core.prices import GenaiPrices, PriceTable, listed_context_window
from traced_tools.errors import ConfigurationError
from traced_tools.models.openai import servers

TABLE = GenaiPrices()
MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("deepseek", "deepseek-chat"),
    ("gcp.gemini", "gemini-2.5-pro"),
    ("groq", "llama-3.3-70b-versatile"),
    ("mistral_ai", "mistral-large-latest"),
    ("openai", "gpt-4o-mini"),
    ("openrouter", "openai/gpt-5"),
    ("perplexity", "sonar"),
    ("x_ai", "grok-4"),
]
"""One of each provider that has a list of prices, as our models name them."""
PRICED = [
    (provider, model)
    for provider in providers
    for model in provider.models
    if model.prices and vars(model.get_prices(datetime.now(UTC))).get("input_mtok") is not None
]
TOKENS = st.integers(0, 400_000)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a model of the given prices into a table of its own and return the table."""

    def put(price: ModelPrice) -> GenaiPrices:
        table = GenaiPrices()
        model = ModelInfo(id="m", match=providers[0].models[0].match, prices=price)
        monkeypatch.setattr(table, "_find", lambda provider, name: model)
        return table

    return put


@pytest.mark.parametrize(("provider", "model"), MODELS)
def test_every_provider_with_list_prices_has_its_models_priced(provider: str, model: str) -> None:
    cost = TABLE.price(provider, model, Usage(input_tokens=1000, output_tokens=100))
    assert cost is not None
    assert 0.00001 < cost < 0.1


def test_the_providers_of_the_servers_we_know_are_priced_or_known_to_have_no_list() -> None:
    named = {provider for provider, _ in MODELS}
    assert {server.provider for server in servers._KNOWN} - named == {"huggingface"}


@given(st.sampled_from(PRICED), TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_the_cost_is_what_the_package_itself_computes(
    priced: tuple[Provider, ModelInfo], plain: int, read: int, written: int, answer: int, thought: int
) -> None:
    provider, model = priced
    counts = {"input_tokens": plain + read + written, "output_tokens": answer + thought}
    now = datetime.now(UTC)
    expected = model.calc_price(
        ListedUsage(**counts, cache_read_tokens=read, cache_write_tokens=written, output_reasoning_tokens=thought),
        provider,
        genai_request_timestamp=now,
    ).total_price
    usage = Usage(**counts, cache_read_tokens=read, cache_write_tokens=written, reasoning_tokens=thought)
    cost = prices._cost(model.get_prices(now), usage)
    if vars(model.get_prices(now)).get("output_mtok") is None and counts["output_tokens"]:
        assert cost is None
    else:
        assert cost == pytest.approx(float(expected), rel=1e-9, abs=1e-15)


def test_cached_tokens_are_part_of_the_input_and_cost_what_cached_tokens_cost(listed: Any) -> None:
    table: PriceTable = listed(
        ModelPrice(input_mtok=Decimal(10), cache_read_mtok=Decimal(1), cache_write_mtok=Decimal(20))
    )
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=500_000, cache_write_tokens=100_000)
    assert table.price("p", "m", usage) == pytest.approx(0.4 * 10 + 0.5 * 1 + 0.1 * 20)


def test_cached_and_reasoning_tokens_without_their_own_price_cost_the_base_price(listed: Any) -> None:
    table = listed(ModelPrice(input_mtok=Decimal(10), output_mtok=Decimal(30)))
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=500_000, output_tokens=100_000, reasoning_tokens=90_000)
    assert table.price("p", "m", usage) == pytest.approx(10 + 3)


def test_reasoning_with_a_price_of_its_own_costs_that(listed: Any) -> None:
    table = listed(ModelPrice(input_mtok=Decimal(10), output_mtok=Decimal(30), output_reasoning_mtok=Decimal(5)))
    usage = Usage(input_tokens=0, output_tokens=1_000_000, reasoning_tokens=800_000)
    assert table.price("p", "m", usage) == pytest.approx(0.2 * 30 + 0.8 * 5)


@pytest.mark.parametrize(("tokens", "rate"), [(200_000, 1), (200_001, 2), (500_001, 4)])
def test_a_long_prompt_costs_what_long_prompts_cost(listed: Any, tokens: int, rate: int) -> None:
    tiers = [Tier(start=200_000, price=Decimal(2)), Tier(start=500_000, price=Decimal(4))]
    table = listed(ModelPrice(input_mtok=TieredPrices(base=Decimal(1), tiers=tiers)))
    assert table.price("p", "m", Usage(input_tokens=tokens)) == pytest.approx(tokens * rate / 1_000_000)


def test_a_price_for_the_request_counts_once(listed: Any) -> None:
    table = listed(ModelPrice(input_mtok=Decimal(1), requests_kcount=Decimal(12)))
    assert table.price("p", "m", Usage(input_tokens=0)) == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "no-such-model"), ("ollama", "llama3.2"), ("scripted", "scripted"), ("", ""), ("openai", "moderation")],
)
def test_a_model_without_a_price_has_none(provider: str, model: str) -> None:
    assert TABLE.price(provider, model, Usage(input_tokens=1000, output_tokens=100)) is None


def test_a_model_that_is_listed_without_prices_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = GenaiPrices()
    bare = ModelInfo(id="m", match=providers[0].models[0].match)
    monkeypatch.setattr(table._listed, "find_provider_model", lambda *_: (providers[0], bare))
    assert table.price("p", "m", Usage(input_tokens=1000)) is None


@pytest.mark.parametrize(
    "usage",
    [
        Usage(),
        Usage(output_tokens=5),
        Usage(input_tokens=10, cache_read_tokens=50, output_tokens=1000),
        Usage(input_tokens=-1),
        Usage(input_tokens=10, cache_read_tokens=-5),
        Usage(input_tokens=10**400),
        Usage(input_tokens=10**307, output_tokens=10**308),
    ],
    ids=["nothing", "no input", "more cached than read", "negative", "negative cached", "no float", "no finite sum"],
)
def test_incomplete_or_inconsistent_usage_has_no_price(usage: Usage) -> None:
    assert TABLE.price("openai", "gpt-5", usage) is None


@given(st.sampled_from(MODELS), st.builds(Usage, **dict.fromkeys(Usage.model_fields, st.none() | st.integers())))
def test_whatever_is_reported_a_cost_is_finite_and_not_negative(named: tuple[str, str], usage: Usage) -> None:
    cost = TABLE.price(*named, usage)
    assert cost is None or (isfinite(cost) and cost >= 0)


def test_a_table_remembers_a_bounded_number_of_models_known_or_not() -> None:
    table = GenaiPrices()
    for number in range(prices._MAX_CACHED_MODELS + 5):
        table.price("openai", f"invented-{number}", Usage(input_tokens=1))
    assert table._find.cache_info().currsize == prices._MAX_CACHED_MODELS
    table.price("openai", f"invented-{number}", Usage(input_tokens=1))
    assert table._find.cache_info().hits == 1


def test_the_context_window_is_the_one_that_the_package_lists() -> None:
    assert listed_context_window("openai", "gpt-5-mini") == 400_000
    assert listed_context_window("gcp.gemini", "gemini-2.5-pro") is None  # it lists none for this model
    assert listed_context_window("invented", "gpt-5-mini") is None


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "genai_prices"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'traced_tools\[prices\]'"):
        GenaiPrices()
    listed_context_window.cache_clear()
    assert listed_context_window("openai", "gpt-5-mini") is None
    listed_context_window.cache_clear()


def test_prices_fetched_elsewhere_in_the_process_do_not_change_the_table() -> None:
    from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot

    set_custom_snapshot(DataSnapshot(providers=[], from_auto_update=True))
    try:
        assert GenaiPrices().price("openai", "gpt-5", Usage(input_tokens=1000)) is not None
    finally:
        set_custom_snapshot(None)
