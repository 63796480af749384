"""The choice of tools that an advisor treats specially, by name and by pattern."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.errors import ConfigurationError
from traced_tools.run.context import current_run
from traced_tools.tools.invocation import ToolInvocation

_LOG = logging.getLogger(__name__)
_WILDCARD: Final = re.compile(r"[*?\[]")


class ToolPatterns:
    """Chooses tools by name and, among the tools that are safe according to their author, by pattern.

    Args:
        tools: a name or a pattern, or several; in a pattern, `*` stands for any characters, `?` for one, `[ab]` for one
            of several.
        is_safe: returns whether a pattern may choose a tool with these annotations.

    Raises:
        TypeError: if `tools` has a wrong type.
        ConfigurationError: if `tools` is empty.
    """

    def __init__(self, tools: str | Sequence[str], is_safe: Callable[[ToolAnnotations], bool]) -> None:
        patterns: Any = (tools,) if isinstance(tools, str) else tools
        expect("tools", patterns, Iterable, "a str or a list of str")
        self._patterns = tuple(patterns)
        expect_each("tools", self._patterns, str, "a str")
        if not self._patterns or "" in self._patterns:
            raise ConfigurationError("tools must have at least one name or pattern, and no empty one")
        self._is_safe = is_safe
        self._unseen = {pattern for pattern in self._patterns if not _WILDCARD.search(pattern)}

    def choose(self, call: ToolInvocation) -> bool:
        """Return whether the tool of `call` is chosen.

        A name that no tool of the call's run has may be misspelled, so it is logged once.
        """
        if self._unseen:
            self._check_names()
        if call.name in self._patterns:
            return True
        matches = any(fnmatchcase(call.name, pattern) for pattern in self._patterns)
        return matches and self._is_safe(call.metadata.annotations)

    def _check_names(self) -> None:
        run = current_run()
        assert run is not None  # a tool is called in a run
        unknown = self._unseen.difference(run.tool_names)
        self._unseen = set()
        for name in sorted(unknown):
            _LOG.warning("no tool of the run is named %r: check tools= of RetryToolAdvisor or CacheToolAdvisor", name)

    def __repr__(self) -> str:
        return ", ".join(self._patterns)
