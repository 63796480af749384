"""The catalogues that share one tool index: each definition is indexed once, for all clients that search it.

A catalogue is the tools of a request, by their definitions. Runs with the same definitions share a catalogue, also if
their tools are other objects. Catalogues that overlap share what they have in common: the index has one entry for each
definition, and a catalogue knows which entries are its own.

Threads search while others evict. A catalogue that is being searched keeps its entries. When entries leave the index,
a new generation of the index begins: before its next search, each catalogue gets the entries that it now lacks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Final

from traced_tools.core.eviction import EvictingStore, Eviction
from traced_tools.core.fork import ForkSafeLock
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.flow.steps import perform
from traced_tools.run.context import RunContext
from traced_tools.search.index import ToolIndex, ToolMatch
from traced_tools.tools.toolset import ToolSet

_BYTES_PER_TOKEN: Final = 4


class Catalogue:
    """The definitions of the tools that a run can search.

    Attributes:
        digests: the digest of each definition, by the tool's name.
        entries: the name of the tool of each entry of the index that is the catalogue's.
        generation: the generation of the index in which it got them; None if the catalogue was never indexed.
    """

    def __init__(self, digests: Mapping[str, bytes]) -> None:
        self.digests: Final = digests
        self.entries: Mapping[str, str] = {}
        self.generation: int | None = None
        self._tokens: int | None = None

    def tokens(self, tools: ToolSet) -> int:
        """Return an estimate of the tokens of the definitions; `tools` are tools of the catalogue."""
        if self._tokens is None:
            self._tokens = estimate_tokens(tools.definitions)
        return self._tokens


class CatalogueIndex:
    """Catalogues in one tool index.

    Args:
        index: the index, which belongs to this object from now on. Other entries in it are never found.
        eviction: decides which catalogues are evicted. Entries that no other catalogue has are then removed.
    """

    def __init__(self, index: ToolIndex, eviction: Eviction) -> None:
        self._index = index
        self._catalogues: EvictingStore[str, Catalogue] = EvictingStore(eviction)
        self._indexed: dict[bytes, str] = {}
        self._has_evicted = False
        self._changing = ForkSafeLock()  # held while the index changes, which may take long
        self._keeping = ForkSafeLock()  # held while it is decided which entries stay
        self._generation = 0
        self._clearings = 0
        self._searched: Counter[Catalogue] = Counter()

    @property
    def kind(self) -> str:
        """The kind of the index, for telemetry."""
        return self._index.kind

    def catalogue_of(self, tools: ToolSet) -> Catalogue:
        """Return the catalogue of `tools`, which may not be indexed yet."""
        catalogue, evicted = self._catalogues.use(tools.fingerprint, lambda: Catalogue(tools.digests))
        if evicted:
            self._has_evicted = True
        return catalogue

    async def prepare(self, catalogue: Catalogue, tools: ToolSet) -> None:
        """Index the tools of the catalogue unless they are indexed, as a flow."""
        if catalogue.generation != self._generation or self._has_evicted:
            await perform(self._prepare, catalogue, tools)

    async def search(self, run: RunContext, tools: ToolSet, query: str, max_results: int) -> list[ToolMatch]:
        """Return the tools that fit `query`, the best first, as a flow. Their catalogue counts as used.

        Args:
            run: the run that searches.
            tools: what it searches.
            query: what the tools must do; content.
            max_results: the maximum number of tools to return.
        """
        while True:
            clearings, catalogue = self._clearings, self.catalogue_of(tools)
            with self._keep_entries(catalogue):
                await self.prepare(catalogue, tools)
                matches = await self._search(run, catalogue.entries, query, max_results)
            if clearings == self._clearings:
                return matches

    async def _search(self, run: RunContext, own: Mapping[str, str], query: str, max_results: int) -> list[ToolMatch]:
        # entries of other catalogues may fit better, and a store may have entries of other processes
        limit, previous_count = max_results + max(0, len(self._indexed) - len(own)), 0
        while True:
            matches = await self._index.search_in_run(run, query, limit)
            own_matches = [ToolMatch(own[match.name], match.score) for match in matches if match.name in own]
            if len(own_matches) >= max_results or len(matches) < limit or len(matches) <= previous_count:
                return own_matches[:max_results]
            limit, previous_count = 4 * limit, len(matches)

    @contextmanager
    def _keep_entries(self, catalogue: Catalogue) -> Iterator[None]:
        """Keep an eviction from removing the entries of a catalogue."""
        with self._keeping:
            self._searched[catalogue] += 1
        try:
            yield
        finally:
            with self._keeping:
                self._searched[catalogue] -= 1
                if not self._searched[catalogue]:
                    del self._searched[catalogue]

    def evict(self) -> None:
        """Remove all catalogues from the index; a run that goes on indexes its own again."""
        with self._changing:
            self._catalogues.evict()
            self._generation += 1
            self._clearings += 1
            self._remove({*self._indexed})

    def _prepare(self, catalogue: Catalogue, tools: ToolSet) -> None:
        with self._changing:
            if self._has_evicted:
                self._has_evicted = False
                self._remove(self._unused(catalogue))
            if catalogue.generation != self._generation:
                self._add(
                    [
                        definition
                        for definition in tools.definitions
                        if tools.digests[definition.name] not in self._indexed
                    ],
                    tools,
                )
                catalogue.entries = {self._indexed[digest]: name for name, digest in catalogue.digests.items()}
                catalogue.generation = self._generation

    def _unused(self, catalogue: Catalogue) -> set[bytes]:
        """Return what neither this catalogue, nor one that is not evicted, nor one that is being searched has.

        If there is anything, a new generation begins.
        """
        with self._keeping:
            catalogues = [catalogue, *self._catalogues.values(), *self._searched]
            unused = self._indexed.keys() - {digest for current in catalogues for digest in current.digests.values()}
            self._generation += bool(unused)
            return unused

    def _add(self, definitions: Iterable[ToolDefinition], tools: ToolSet) -> None:
        names, new_definitions = {*self._indexed.values()}, dict[bytes, ToolDefinition]()
        for definition in definitions:
            digest = tools.digests[definition.name]
            if definition.name in names:  # by another definition of that name
                definition = definition.replace(name=f"{definition.name} {digest.hex()[:16]}")
            new_definitions[digest] = definition
        if new_definitions:
            self._index.add([*new_definitions.values()])
            self._indexed |= {digest: definition.name for digest, definition in new_definitions.items()}

    def _remove(self, digests: Set[bytes]) -> None:
        if digests:
            self._index.remove([name for digest, name in self._indexed.items() if digest in digests])
            self._indexed = {digest: name for digest, name in self._indexed.items() if digest not in digests}

    def __len__(self) -> int:
        return len(self._catalogues)


def estimate_tokens(definitions: Iterable[ToolDefinition]) -> int:
    """Return an estimate of the tokens of tool definitions in a request: a token for four bytes of their JSON."""
    return sum(map(_tokens, definitions))


def _estimate(definition: ToolDefinition) -> int:
    text = f"{definition.name}{definition.description}{json.dumps(definition.input_schema, default=str)}"
    return -(-len(text.encode(errors="replace")) // _BYTES_PER_TOKEN)


_tokens: IdentityCache[ToolDefinition, int] = IdentityCache(_estimate)
