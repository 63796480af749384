"""What the `OTEL_*` variables say about OTLP: whether a signal is sent, where to, and in which protocol.

The exporters read these variables themselves; here they are checked beforehand, so that a wrong one is an error with a
clear text and not a line in the log of a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import environ
from typing import Final
from urllib.parse import urlsplit

from traced_tools.errors import ConfigurationError

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@dataclass(frozen=True)
class Signal:
    """Traces, metrics or logs.

    Args:
        name: as it stands in the names of variables: `TRACES`, `METRICS` or `LOGS`.
    """

    name: str

    @property
    def path(self) -> str:
        """What is added to a collector's base URL."""
        return f"v1/{self.name.lower()}"

    @property
    def exporter_variable(self) -> str:
        """The variable that names exporters for this signal."""
        return f"OTEL_{self.name}_EXPORTER"

    @property
    def endpoint_variable(self) -> str:
        """The variable that gives this signal an endpoint of its own."""
        return f"OTEL_EXPORTER_OTLP_{self.name}_ENDPOINT"

    def exporters(self) -> set[str]:
        """Return the exporters the environment names for this signal."""
        return {name.strip().lower() for name in environ.get(self.exporter_variable, "").split(",")} - {""}

    def is_sent(self, otlp: bool | str | None) -> bool:
        """Whether the signal is sent over OTLP; the operator's `none` beats the program's wish."""
        exporters = self.exporters()
        if "none" in exporters or otlp is False:
            return False
        if otlp is not None:
            return True
        endpoint = environ.get(self.endpoint_variable) or environ.get(_ENDPOINT)
        return "otlp" in exporters or (not exporters and bool(endpoint))

    def protocol(self) -> str:
        """Return `grpc` or `http/protobuf`; raises `ConfigurationError` for a variable that says something else."""
        for variable in (f"OTEL_EXPORTER_OTLP_{self.name}_PROTOCOL", _PROTOCOL):
            protocol = environ.get(variable, "").strip().lower()
            if protocol and protocol not in (GRPC, HTTP):
                raise ConfigurationError(f"{variable} must be {GRPC} or {HTTP}")
            if protocol:
                return protocol
        return HTTP

    def endpoint(self, otlp: bool | str | None) -> str | None:
        """Return the URL to send to, or None to let the exporter read its variables, which are checked."""
        is_grpc = self.protocol() == GRPC
        if isinstance(otlp, str):
            return otlp if is_grpc else f"{otlp.rstrip('/')}/{self.path}"
        for variable in (self.endpoint_variable, _ENDPOINT):
            value = environ.get(variable)
            if value and not (is_grpc and "://" not in value):  # gRPC also takes host:port
                _check_url(variable, value)
        return None


TRACES: Final = Signal("TRACES")
METRICS: Final = Signal("METRICS")
LOGS: Final = Signal("LOGS")
SIGNALS: Final = (TRACES, METRICS, LOGS)


def check_collector(url: str) -> None:
    """Raise `ConfigurationError` unless `url` is a collector's base URL."""
    _check_url("otlp", url)
    parts = urlsplit(url)
    paths = tuple(signal.path for signal in SIGNALS)
    if parts.query or parts.fragment or parts.path.endswith(paths):
        raise ConfigurationError(
            f"otlp must be the collector's base URL, without query: {', '.join(paths)} are added to it"
        )


def _check_url(setting: str, url: str) -> None:
    """Raise `ConfigurationError` unless `url` is one; its text does not quote it, since it may hold a password."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or url.split() != [url]:
        raise ConfigurationError(f'{setting} must be an http or https URL with a host, such as "http://localhost:4318"')
