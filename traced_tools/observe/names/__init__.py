"""Every telemetry name the package emits: the one table that instrumentation, boards, rules, docs and tests read.

A name is declared once, with its type and what it means, and used through its constant. Nothing outside this package
spells one. Names that begin with `gen_ai.` follow the OpenTelemetry GenAI semantic conventions (in Development, without
a release, hence without a schema URL); names that begin with `traced_tools.` are ours.
"""

from __future__ import annotations

from traced_tools.observe.names.attributes import *
from traced_tools.observe.names.events import *
from traced_tools.observe.names.meanings import *
from traced_tools.observe.names.metrics import *
from traced_tools.observe.names.spans import *
