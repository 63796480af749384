"""The OTLP settings of each signal from `OTEL_*` variables: whether it is sent, its endpoint, and its protocol.

The exporters read these variables themselves. They are checked here first, so that an invalid value raises an error in
`configure` instead of a log line in a background thread.
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
    """One of the signals traces, metrics and logs.

    Args:
        name: the signal in the names of variables: `TRACES`, `METRICS` or `LOGS`.
    """

    name: str

    @property
    def path(self) -> str:
        """The path that is appended to a collector's base URL."""
        return f"v1/{self.name.lower()}"

    @property
    def exporter_variable(self) -> str:
        """The variable that names exporters for this signal."""
        return f"OTEL_{self.name}_EXPORTER"

    @property
    def endpoint_variable(self) -> str:
        """The variable that sets the endpoint of this signal."""
        return f"OTEL_EXPORTER_OTLP_{self.name}_ENDPOINT"

    def exporters(self) -> set[str]:
        """Return the exporters that the environment names for this signal."""
        return {name.strip().lower() for name in environ.get(self.exporter_variable, "").split(",")} - {""}

    def is_sent(self, otlp: bool | str | None) -> bool:
        """Whether the signal is sent over OTLP; `none` in the environment overrides the argument of `configure`."""
        exporters = self.exporters()
        if "none" in exporters or otlp is False:
            return False
        if otlp is not None:
            return True
        endpoint = environ.get(self.endpoint_variable) or environ.get(_ENDPOINT)
        return "otlp" in exporters or (not exporters and bool(endpoint))

    def protocol(self) -> str:
        """Return `grpc` or `http/protobuf`; raises `ConfigurationError` if a variable has another value."""
        for variable in (f"OTEL_EXPORTER_OTLP_{self.name}_PROTOCOL", _PROTOCOL):
            protocol = environ.get(variable, "").strip().lower()
            if protocol and protocol not in (GRPC, HTTP):
                raise ConfigurationError(f"{variable} must be {GRPC} or {HTTP}")
            if protocol:
                return protocol
        return HTTP

    def endpoint(self, otlp: bool | str | None) -> str | None:
        """Return the URL to send to, or None if the exporter reads it from its variables, which are checked here."""
        is_grpc = self.protocol() == GRPC
        if isinstance(otlp, str):
            return otlp if is_grpc else f"{otlp.rstrip('/')}/{self.path}"
        for variable in (self.endpoint_variable, _ENDPOINT):
            value = environ.get(variable)
            if value and not (is_grpc and "://" not in value):  # gRPC also accepts host:port
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
            f"otlp must be the collector's base URL, without a query; {', '.join(paths)} are appended to it"
        )


def _check_url(setting: str, url: str) -> None:
    """Raise `ConfigurationError` unless `url` is valid. The error does not quote it: it may contain a password."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or url.split() != [url]:
        raise ConfigurationError(f'{setting} must be an http or https URL with a host, such as "http://localhost:4318"')
