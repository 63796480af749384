"""The check of the port that serves metrics to Prometheus."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Final

from traced_tools.cli.doctor.result import Check, Result, State
from traced_tools.otel.prometheus import parse_address

_GROUP: Final = "prometheus"


def prometheus_checks(address: str | None, timeout: float) -> Iterator[Check]:
    """Yield the check of an address as it is passed to `configure(prometheus=)`; each port of a range is checked."""
    if address is not None:
        host, ports = parse_address(int(address) if address.isdecimal() else address)
        for port in ports:
            yield Check(_GROUP, f"{host}:{port}", partial(_check_port, host, port, timeout))


def _check_port(host: str, port: int, timeout: float) -> Iterator[Result]:
    subject = f"{host}:{port}"
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            yield Result(_GROUP, subject, State.OK, "the port is free: a process can serve its metrics there")
            return
    except (OSError, OverflowError):
        pass
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        is_metrics = response.status == 200 and b"# " in response.read(65_536)
        text = "answers /metrics" if is_metrics else f"answers /metrics with HTTP {response.status} and no metrics"
    except (OSError, HTTPException) as error:
        is_metrics, text = False, f"cannot be bound, and nothing answers /metrics ({type(error).__name__})"
    finally:
        connection.close()
    if is_metrics:
        yield Result(_GROUP, subject, State.OK, text)
    else:
        yield Result(
            _GROUP, subject, State.PROBLEM, text, "choose another port, or a range such as 127.0.0.1:9464-9471"
        )
