"""The description of the distributions: README.md without links to files, which a package index does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Replaces the links of README.md to files by their texts, and removes its pictures."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]+\)\n*", "", text)
        text = re.sub(r"\[([^\]]*)\]\((?!https?:|#)[^)]+\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
