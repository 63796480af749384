"""Metrics in a forked child, which count from zero: the parent exports what it has counted until the fork."""

from __future__ import annotations

from threading import Lock

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer


def restart_metrics(provider: object) -> None:
    """Empty the aggregations of a meter provider of the SDK, which copies those of the parent into each child.

    The instruments stay, and create their series anew, with start times after the fork.

    Args:
        provider: a provider of any signal; only meter providers have aggregations.
    """
    consumer = getattr(provider, "_measurement_consumer", None)
    if isinstance(provider, MeterProvider) and isinstance(consumer, SynchronousMeasurementConsumer):
        readers = [*consumer._reader_storages]
        consumer._lock = Lock()  # a thread of the parent may hold the inherited lock, and is not in the child
        consumer._reader_storages = {}
        for reader in readers:
            consumer.add_metric_reader(reader)
