"""Checks that recorded erasures account for the texts that are missing from records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from traced_tools.audit.records import commits_to_text, printable_id, text_hash
from traced_tools.audit.verifying.attestations import reference_of
from traced_tools.audit.verifying.findings import Problem

_MOST_NOTED: Final = 5
Text = tuple[str, int, str, str]
"""Identifies a text: chain id, sequence number and hash of its record, and the name of the content."""


@dataclass(slots=True)
class Erasures:
    """The missing texts and the erasures of a store."""

    missing: list[Text] = field(default_factory=list)
    erased: int = 0
    _erasures: dict[Text, list[tuple[str, int]]] = field(default_factory=dict)
    _summaries: list[str] = field(default_factory=list)

    def check_texts(self, chain_id: str, place: int, hash_: str, fields: Mapping[str, Any]) -> str | None:
        """Check the texts of a record of version 2; return the first problem as a message."""
        for name, content in fields.items():
            if not commits_to_text(content):
                continue
            if "text" not in content:
                if leftovers := sorted({"salt", "cut"} & content.keys()):
                    return f"its text of {printable_id(name)} is missing, but {' and '.join(leftovers)} are still there"
                self.missing.append((chain_id, place, hash_, name))
            elif text_hash(content) != content["text_hash"]:
                return f"its text of {printable_id(name)} is not the one that was written"
        return None

    def add_erasure(self, chain_id: str, place: int, fields: Mapping[str, Any]) -> None:
        """Add the texts that an erasure record lists."""
        erased = fields.get("erased")
        contents_count = 0
        for reference in erased if isinstance(erased, list) else ():
            target = reference_of(reference)
            contents = reference.get("contents") if isinstance(reference, dict) else None
            for name in contents if target is not None and isinstance(contents, list) else ():
                assert target is not None
                self._erasures.setdefault((*target, str(name)), []).append((chain_id, place))
                contents_count += 1
        person, reason = (printable_id(fields.get(name)) for name in ("requested_by", "erasure_reason"))
        run = printable_id(fields.get("erased_run"))
        self._summaries.append(
            f"{contents_count} of run {run}, by record {place} of the chain {printable_id(chain_id)}: "
            f"{person} ({reason})"
        )

    def problems(self, is_covered: Callable[[str, int], bool]) -> Iterator[Problem]:
        """Yield a problem for each missing text that no erasure accounts for.

        Args:
            is_covered: returns whether a trusted checkpoint covers a record (chain id, sequence number). Without a
                checkpoint, a writer could forge an erasure.
        """
        for chain_id, place, hash_, name in self.missing:
            erasures = self._erasures.get((chain_id, place, hash_, name), [])
            if any(is_covered(*erasure) for erasure in erasures):
                self.erased += 1
                continue
            text = f"its text of {printable_id(name)} is missing, and no erasure on record names it"
            if erasures:
                chain, number = erasures[0]
                text = (
                    f"its text of {printable_id(name)} is missing; record {number} of the chain {printable_id(chain)} "
                    "says that it was erased, but no trusted checkpoint of that chain covers that record"
                )
            yield Problem("changed", chain_id, place, text)

    def notes(self, is_stored: Callable[[Text], bool]) -> Iterator[str]:
        """Yield notes about what was erased and who requested it, and about texts that should be erased but are not.

        Args:
            is_stored: returns whether the store holds a text.
        """
        for summary in self._summaries[:_MOST_NOTED]:
            yield f"texts erased: {summary}"
        if (more := len(self._summaries) - _MOST_NOTED) > 0:
            yield f"and {more} more erasures"
        remaining = sum(is_stored(place) for place in {*self._erasures} - {*self.missing})
        if remaining:
            yield f"texts named by an erasure but still stored: {remaining}; run erase again"
