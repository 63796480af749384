"""Hints for servers that fork worker processes, as far as the environment shows that one is used."""

from __future__ import annotations

from collections.abc import Iterator
from os import environ
from typing import Final

from traced_tools.cli.doctor.result import Result, State
from traced_tools.otel.otlp import GRPC, SIGNALS

_GROUP: Final = "workers"
_SIGNS: Final = {
    "gunicorn": ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY"),
    "uWSGI": ("UWSGI_ORIGINAL_PROC_NAME", "UWSGI_PROCESSES", "UWSGI_WORKERS", "UWSGI_MASTER"),
    "Celery": ("CELERY_BROKER_URL", "CELERYD_CONCURRENCY", "CELERY_WORKER_CONCURRENCY"),
}
_ADVICE: Final = "call configure() in each worker, after the fork (gunicorn's post_fork, Celery's worker_process_init)"


def check_forks(prometheus: str | None) -> Iterator[Result]:
    """Yield hints about worker processes.

    Args:
        prometheus: the address that the application passes to `configure(prometheus=)`; None if it is not known.
    """
    servers = {server: next(filter(environ.get, names), None) for server, names in _SIGNS.items()}
    for server, variable in servers.items():
        if variable is not None:
            yield Result(_GROUP, server, State.NOTE, f"{variable} is set: processes may be forked", _ADVICE)
    if not any(servers.values()):
        return
    if prometheus is not None and "-" not in prometheus:
        text = f"{prometheus} can be served by one worker only"
        advice = "pass a range such as 127.0.0.1:9464-9471, and prometheus_targets="
        yield Result(_GROUP, "prometheus", State.NOTE, text, advice)
    if any(signal.is_sent(None) and signal.protocol() == GRPC for signal in SIGNALS):
        advice = "call configure() after the fork, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        yield Result(_GROUP, "gRPC", State.NOTE, "connections of gRPC do not survive a fork", advice)
