"""The file from which Prometheus learns where the workers of a program serve their metrics.

It is a file for `file_sd_configs`: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traced_tools.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_EVERY_ADDRESS = ("0.0.0.0", "[::]")
_PATIENCE = 0.5
"""Seconds for a worker to accept a connection; one that takes longer is alive."""


class TargetsFile:
    """A list of addresses that several processes write to.

    Each change is made under a lock (a file beside it that ends in `.lock`) and replaces the file as a whole. A change
    leaves out the addresses that refuse a connection: their workers are dead.

    Args:
        path: the file; made when the first address is added. Its folder must be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, address: str) -> None:
        """Add the address of this process.

        Raises:
            ConfigurationError: when the file cannot be written, or holds something else than targets.
        """
        try:
            self._change(added=address)
        except OSError as error:
            raise ConfigurationError(f"prometheus_targets: cannot write {self._path} ({error.strerror})") from None

    def remove(self, address: str) -> None:
        """Remove the address of this process."""
        self._change(removed=address)

    def _change(self, added: str = "", removed: str = "") -> None:
        own = {_reachable(each) for each in (added, removed) if each}
        with self._locked():
            others = {each for each in self._read() - own if not _refuses(each)}
            wanted = others | {_reachable(added)} if added else others
            draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
            draft.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody else put there
            try:  # not by `tempfile`, whose files nobody else may read: Prometheus is another user
                with open(draft, "x", encoding="utf-8") as file:
                    file.write(json.dumps([{"targets": sorted(wanted)}]) + "\n")
                draft.replace(self._path)
            finally:
                draft.unlink(missing_ok=True)

    def _read(self) -> set[str]:
        try:
            match json.loads(self._path.read_text("utf-8")):
                case []:
                    return set()
                case [{"targets": [*targets], **rest}] if not rest and all(isinstance(each, str) for each in targets):
                    return set(targets)
        except FileNotFoundError:
            return set()
        except (ValueError, RecursionError):
            pass
        raise ConfigurationError(
            f"prometheus_targets: {self._path} holds something else than a list of targets, which this would write "
            "over; name another file"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._path.with_name(f"{self._path.name}.lock"), "a") as lock:
            if fcntl is not None:
                fcntl.lockf(lock, fcntl.LOCK_EX)  # not flock(), which a child forked meanwhile would hold for good
            yield


def _reachable(address: str) -> str:
    """Return an address to connect to: this machine's name stands for all of its interfaces."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _EVERY_ADDRESS else address


def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (ConnectionRefusedError, ValueError, OverflowError):
        return True
    except OSError:  # it may be busy, or cannot be reached from here only
        return False
    return False
