"""What the package `genai-prices` lists: prices of model calls, and context windows; and the `PriceTable` protocol."""

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
"""The package's provider ids, for values of `gen_ai.provider.name` that the package does not know."""
_MAX_CACHED_MODELS: Final = 1024
_MILLION: Final = 1_000_000


class PriceTable(Protocol):
    """Prices of model calls.

    `price` is called after each model call, from any thread; it must be fast and must not block.
    """

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return the cost of a call in US dollars; None if the model has no price or the usage is incomplete.

        Args:
            provider: the provider of the model, as in `gen_ai.provider.name`.
            model: the model's name.
            usage: the tokens of one call. Cached tokens are part of the input, reasoning tokens of the output.
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
                return check_price(price)
    except Exception as error:
        failed(error, "the price table")
    return None


def check_price(dollars: float) -> float:
    """Return a price that a table gave; raises `TypeError` or `ValueError` for what can be none."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float):
        raise TypeError(f"a price must be a number of dollars, not {type(dollars).__name__}")
    if not 0 <= dollars < inf:
        raise ValueError("a price must be finite and not negative")
    return float(dollars)


class GenaiPrices:
    """The list prices that are bundled with the package `genai-prices`; nothing is downloaded.

    The prices are for standard processing at the time of the call, without discounts, batch prices or service tiers.
    Cache writes are priced for the provider's default retention. Local models, and models that the package lists
    without a price, have no price.

    Raises:
        ConfigurationError: the package `genai-prices` is not installed.
    """

    def __init__(self) -> None:
        self._listed = _load_prices()
        self._find = lru_cache(_MAX_CACHED_MODELS)(self._look_up)

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return the cost of a call in US dollars; None if the model has no price or the usage is incomplete."""
        model_info = self._find(provider, model)
        try:
            return None if model_info is None else _cost(model_info.get_prices(datetime.now(UTC)), usage)
        except OverflowError:  # more tokens than a float can hold
            return None

    def _look_up(self, provider: str, model: str) -> ModelInfo | None:
        model_info = _find_model(self._listed, provider, model)
        return model_info if model_info and model_info.prices else None


@lru_cache(_MAX_CACHED_MODELS)
def listed_context_window(provider: str, model: str) -> int | None:
    """Return the context window in tokens that the package `genai-prices` lists; None if it lists none.

    Args:
        provider: the provider of the model, as in `gen_ai.provider.name`.
        model: the model's name.
    """
    try:
        model_info = _find_model(_load_prices(), provider, model)
    except ConfigurationError:  # the package is not installed
        return None
    return model_info.context_window if model_info else None


def _find_model(snapshot: DataSnapshot, provider: str, model: str) -> ModelInfo | None:
    try:
        return snapshot.find_provider_model(model, None, _PROVIDERS.get(provider, provider), None)[1]
    except LookupError:
        return None


def _load_prices() -> DataSnapshot:
    try:
        from genai_prices.data import providers
        from genai_prices.data_snapshot import DataSnapshot
    except ImportError:
        raise ConfigurationError("GenaiPrices needs the extra prices: pip install 'traced_tools[prices]'") from None
    return DataSnapshot(providers=providers, from_auto_update=False)


def _cost(prices: ModelPrice, usage: Usage) -> float | None:
    """Return the cost in US dollars. The package's own calculation covers more units and is much slower."""
    tokens = usage.input_tokens
    if tokens is None:
        return None
    cached = (
        (_rate(prices, "cache_read_mtok", tokens), usage.cache_read_tokens),
        (_rate(prices, "cache_write_mtok", tokens), usage.cache_write_tokens),
    )
    reasoning = ((_rate(prices, "output_reasoning_mtok", tokens), usage.reasoning_tokens),)
    dollars = (
        _side(tokens, _rate(prices, "input_mtok", tokens), cached)
        + _side(usage.output_tokens or 0, _rate(prices, "output_mtok", tokens), reasoning)
        + (_rate(prices, "requests_kcount", tokens) or 0) * _MILLION / 1000
    ) / _MILLION
    return dollars if 0 <= dollars < inf else None


def _side(tokens: int, rate: float | None, parts: Iterable[tuple[float | None, int | None]]) -> float:
    """Return the cost of the input or output in millionths of a dollar; `nan` if it cannot be calculated.

    Args:
        tokens: the number of tokens.
        rate: dollars for a million tokens.
        parts: the rate and number of tokens with a different price, such as cached ones; `rate` if theirs is None.
    """
    if tokens == 0:
        return 0.0
    priced = [(part_rate, count) for part_rate, count in parts if part_rate is not None and count]
    rest = tokens - sum(count for _, count in priced)
    if rate is None or rest < 0 or any(count < 0 for _, count in priced):
        return nan
    return rate * rest + sum(part_rate * count for part_rate, count in priced)


def _rate(prices: ModelPrice, key: str, input_tokens: int) -> float | None:
    """Return the price that `key` names, in the price tier of a prompt with `input_tokens` tokens."""
    price: Decimal | TieredPrices | None = vars(prices).get(key)
    if price is None or isinstance(price, Decimal):
        return None if price is None else float(price)
    tier_prices = (tier.price for tier in reversed(price.tiers) if input_tokens > tier.start)
    return float(next(tier_prices, price.base))
