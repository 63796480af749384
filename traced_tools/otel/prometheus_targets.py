"""The file in which the workers of a program list the addresses of their metrics endpoints for Prometheus.

The format is that of `file_sd_configs`: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traced_tools.core.disk import replace_file
from traced_tools.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_EVERY_ADDRESS = ("0.0.0.0", "[::]")
_CONNECT_TIMEOUT = 0.5
"""Seconds to wait for a worker to accept a connection. A worker that takes longer counts as alive."""


class TargetsFile:
    """A file with a list of addresses that several processes change.

    Each change holds a lock on a file with the suffix `.lock` and replaces the list as a whole. It also removes
    addresses that refuse a connection, because their workers are dead.

    Args:
        path: the file, created with the first address. Its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, address: str) -> None:
        """Add the address of this process.

        Raises:
            ConfigurationError: the file cannot be written, or contains something other than targets.
        """
        try:
            self._change(new_target=address)
        except OSError as error:
            raise ConfigurationError(f"prometheus_targets: cannot write {self._path} ({error.strerror})") from None

    def remove(self, address: str) -> None:
        """Remove the address of this process."""
        self._change(removed=address)

    def _change(self, new_target: str = "", removed: str = "") -> None:
        own_targets = {_reachable(target) for target in (new_target, removed) if target}
        with self._locked():
            other_targets = {target for target in self._read() - own_targets if not _refuses_connections(target)}
            targets = other_targets | {_reachable(new_target)} if new_target else other_targets
            text = json.dumps([{"targets": sorted(targets)}]) + "\n"
            replace_file(self._path, text.encode(), mode=0o666)  # Prometheus runs as another user

    def _read(self) -> set[str]:
        try:
            match json.loads(self._path.read_text("utf-8")):
                case []:
                    return set()
                case [{"targets": [*targets], **rest}] if not rest and all(
                    isinstance(target, str) for target in targets
                ):
                    return set(targets)
        except FileNotFoundError:
            return set()
        except (ValueError, RecursionError):
            pass
        raise ConfigurationError(
            f"prometheus_targets: {self._path} contains something other than a list of targets; pass another file"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._path.with_name(f"{self._path.name}.lock"), "a") as lock:
            if fcntl is not None:
                fcntl.lockf(lock, fcntl.LOCK_EX)  # not flock(): a child forked meanwhile would keep that lock
            yield


def _reachable(address: str) -> str:
    """Return an address that others can connect to: the host name instead of a wildcard address."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _EVERY_ADDRESS else address


def _refuses_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
    except (ConnectionRefusedError, ValueError, OverflowError):
        return True
    except OSError:  # the worker may be busy, or unreachable only from here
        return False
    return False
