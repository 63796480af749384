"""The SDK's exponential histograms as native histograms of Prometheus, in a remote write request.

Prometheus 2.42 takes native histograms only by remote write; later versions make them of OTLP's exponential histograms
by the same rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.sdk.metrics.export import ExponentialHistogramDataPoint, Metric

from traced_tools.otel.prometheus_names import label_name, make_family

Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
_MESSAGES: Final[Mapping[str, tuple[tuple[str, int, int, int, str], ...]]] = {
    "Label": (("name", 1, _ONE, Field.TYPE_STRING, ""), ("value", 2, _ONE, Field.TYPE_STRING, "")),
    "BucketSpan": (("offset", 1, _ONE, Field.TYPE_SINT32, ""), ("length", 2, _ONE, Field.TYPE_UINT32, "")),
    "Histogram": (
        ("count_int", 1, _ONE, Field.TYPE_UINT64, ""),
        ("sum", 3, _ONE, Field.TYPE_DOUBLE, ""),
        ("schema", 4, _ONE, Field.TYPE_SINT32, ""),
        ("zero_threshold", 5, _ONE, Field.TYPE_DOUBLE, ""),
        ("zero_count_int", 6, _ONE, Field.TYPE_UINT64, ""),
        ("positive_spans", 11, _MANY, Field.TYPE_MESSAGE, "BucketSpan"),
        ("positive_deltas", 12, _MANY, Field.TYPE_SINT64, ""),
        ("timestamp", 15, _ONE, Field.TYPE_INT64, ""),
    ),
    "TimeSeries": (
        ("labels", 1, _MANY, Field.TYPE_MESSAGE, "Label"),
        ("histograms", 4, _MANY, Field.TYPE_MESSAGE, "Histogram"),
    ),
    "WriteRequest": (("timeseries", 1, _MANY, Field.TYPE_MESSAGE, "TimeSeries"),),
}
"""The fields that are used here: https://github.com/prometheus/prometheus/blob/main/prompb/types.proto."""


def _request_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package="remote_write", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, of in fields:
            type_name = f".remote_write.{of}" if of else None
            message.field.add(name=field, number=number, label=label, type=kind, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("remote_write.WriteRequest"))


_WriteRequest: Final = _request_type()


def request(metrics: Iterable[Metric], times: Iterable[int], **labels: str) -> bytes:
    """Return a request that writes each exponential histogram at each time, grown by as much as its values.

    Args:
        metrics: the metrics, of which those of another kind are left out.
        times: the times in milliseconds since 1970, ascending.
        **labels: further labels of all series.
    """
    written, moments = _WriteRequest(), list(times)
    for metric in metrics:
        for point in metric.data.data_points:
            if isinstance(point, ExponentialHistogramDataPoint):
                _add(written.timeseries.add(), metric, point, moments, labels)
    return bytes(written.SerializeToString())


def _add(
    series: Any, metric: Metric, point: ExponentialHistogramDataPoint, times: list[int], further: Mapping[str, str]
) -> None:
    name = make_family(metric.name, "", metric.unit or "", "histogram").name
    attributes = {label_name(key): str(value) for key, value in (point.attributes or {}).items()}
    for label, value in sorted({"__name__": name, **attributes, **further}.items()):
        series.labels.add(name=label, value=value)
    for factor, now in enumerate(times, 1):
        counts = [count * factor for count in point.positive.bucket_counts]
        histogram = series.histograms.add(
            count_int=point.count * factor,
            sum=point.sum * factor,
            schema=point.scale,
            zero_count_int=point.zero_count * factor,
            timestamp=now,
        )
        # A bucket of OpenTelemetry is named by its lower bound, one of Prometheus by its upper bound.
        histogram.positive_spans.add(offset=point.positive.offset + 1, length=len(counts))
        histogram.positive_deltas.extend(after - before for before, after in pairwise([0, *counts]))
