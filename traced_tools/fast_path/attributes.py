"""Attributes that are known to be valid, as the OpenTelemetry SDK keeps them."""

from __future__ import annotations

import threading
from collections.abc import ItemsView
from typing import TYPE_CHECKING

from opentelemetry.attributes import BoundedAttributes

if TYPE_CHECKING:
    from opentelemetry.util.types import AnyValue

    from traced_tools.observe.attributes import Attributes


class ValidAttributes(BoundedAttributes):
    """Attributes whose items are those of the dict in it, which exporters read faster."""

    max_value_len = None
    dropped = 0
    _immutable = False

    def items(self) -> ItemsView[str, AnyValue]:
        """Return the items; of a span that has not ended, a thread may add some meanwhile."""
        return self._dict.items() if self._immutable else super().items()


def valid_attributes(attributes: Attributes, limit: int | None) -> BoundedAttributes:
    """Return what `BoundedAttributes(limit, attributes, immutable=False)` returns if nothing has to be changed.

    Args:
        attributes: at most `limit` attributes, with values of the types that the SDK leaves as they are. The result
            takes over this dict.
        limit: the number of attributes that there can be; None for any.
    """
    bounded = ValidAttributes.__new__(ValidAttributes)
    bounded._dict = attributes
    bounded.maxlen = limit
    bounded._lock = threading.Lock()
    return bounded
