"""What model calls cost: the table of prices that is asked, and the one made from the package `genai-prices`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from math import inf, nan
from typing import TYPE_CHECKING, Final, Protocol

from traced_tools.core.messages import Usage
from traced_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

_PROVIDERS: Final = {
    "aws.bedrock": "aws",
    "azure.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex_ai": "google",
    "mistral_ai": "mistral",
    "moonshot_ai": "moonshotai",
    "x_ai": "x-ai",
}
"""What the package calls those providers whose name in `gen_ai.provider.name` it does not use."""
_MOST_MODELS: Final = 1024
_MILLION: Final = 1_000_000


class PriceTable(Protocol):
    """Tells what model calls cost; called after each of them, from any thread, hence fast and without blocking."""

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return US dollars; None when the model has no price here or the usage tells too little.

        Args:
            provider: who runs the model, as in `gen_ai.provider.name`.
            model: the model's name.
            usage: the tokens of one call; cached ones are part of the input, reasoning is part of the output.
        """
        ...


def cost_of(
    prices: PriceTable,
    provider: str,
    models: Iterable[str | None],
    usage: Usage,
    failed: Callable[[Exception, str], None],
) -> float | None:
    """Return what a model call cost in US dollars; None if the price table does not know.

    Args:
        prices: the price table.
        provider: who runs the model.
        models: the model that answered, if the provider reports it, then the model that was asked. The first one with
            a price counts.
        usage: the tokens of the call.
        failed: called with what the price table raises, and what raised it, for the log.
    """
    try:
        for model in dict.fromkeys(models):
            price = prices.price(provider, model, usage) if model else None
            if price is not None:
                return checked_price(price)
    except Exception as error:
        failed(error, "the price table")
    return None


def checked_price(dollars: float) -> float:
    """Return a price that a table gave; raises `TypeError` or `ValueError` for what can be none."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float):
        raise TypeError(f"a price must be a number of dollars, not {type(dollars).__name__}")
    if not 0 <= dollars < inf:
        raise ValueError("a price must be finite, and not below 0")
    return float(dollars)


class GenaiPrices:
    """The list prices that come with the package `genai-prices`; nothing is fetched.

    Prices are those of standard processing at the time of the call: no discounts, no batches, no service tiers, and
    what is written to a cache is taken to stay for the provider's default time. A local model has no price, nor has one
    that the package lists without any.

    Raises:
        ConfigurationError: when the package is not installed.
    """

    def __init__(self) -> None:
        self._listed = _listed()
        self._find = lru_cache(_MOST_MODELS)(self._look_up)

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return US dollars; None when the model has no price here or the usage tells too little."""
        found = self._find(provider, model)
        try:
            return None if found is None else _cost(found.get_prices(datetime.now(UTC)), usage)
        except OverflowError:  # more tokens than a float can count
            return None

    def _look_up(self, provider: str, model: str) -> ModelInfo | None:
        try:
            found = self._listed.find_provider_model(model, None, _PROVIDERS.get(provider, provider), None)[1]
        except LookupError:
            return None
        return found if found.prices else None


def _listed() -> DataSnapshot:
    try:
        from genai_prices.data import providers
        from genai_prices.data_snapshot import DataSnapshot
    except ImportError:
        raise ConfigurationError("GenaiPrices needs the extra prices: pip install 'traced_tools[prices]'") from None
    return DataSnapshot(providers=providers, from_auto_update=False)


def _cost(prices: ModelPrice, usage: Usage) -> float | None:
    """Return US dollars; the package's own arithmetic, which knows units that we never report, takes far longer."""
    tokens = usage.input_tokens
    if tokens is None:
        return None
    cached = (
        (_rate(prices, "cache_read_mtok", tokens), usage.cache_read_tokens),
        (_rate(prices, "cache_write_mtok", tokens), usage.cache_write_tokens),
    )
    thought = ((_rate(prices, "output_reasoning_mtok", tokens), usage.reasoning_tokens),)
    dollars = (
        _side(tokens, _rate(prices, "input_mtok", tokens), cached)
        + _side(usage.output_tokens or 0, _rate(prices, "output_mtok", tokens), thought)
        + (_rate(prices, "requests_kcount", tokens) or 0) * _MILLION / 1000
    ) / _MILLION
    return dollars if 0 <= dollars < inf else None


def _side(tokens: int, rate: float | None, parts: Iterable[tuple[float | None, int | None]]) -> float:
    """Return what the input or the output costs in millionths of a dollar; `nan` when that cannot be told.

    Args:
        tokens: all of them.
        rate: dollars for a million of them.
        parts: what other tokens among them cost and how many there are; those without a price cost what the rest does.
    """
    if tokens == 0:
        return 0.0
    priced = [(own, count) for own, count in parts if own is not None and count]
    rest = tokens - sum(count for _, count in priced)
    if rate is None or rest < 0 or any(count < 0 for _, count in priced):
        return nan
    return rate * rest + sum(own * count for own, count in priced)


def _rate(prices: ModelPrice, key: str, input_tokens: int) -> float | None:
    """Return the price under `key`, which for a long prompt may be another one."""
    price: Decimal | TieredPrices | None = vars(prices).get(key)
    if price is None or isinstance(price, Decimal):
        return None if price is None else float(price)
    reached = (tier.price for tier in reversed(price.tiers) if input_tokens > tier.start)
    return float(next(reached, price.base))
