"""Makes file names durable."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, such as the name of a new file."""
    with suppress(OSError):  # the process may not read the folder, or the system cannot sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
