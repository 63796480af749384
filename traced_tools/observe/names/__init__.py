"""The telemetry registry: every name that the package emits, with its type and meaning.

Instrumentation, docs and tests read this one registry. Each name is declared once and used through its constant; no
other module spells it. Names that begin with `gen_ai.` follow the OpenTelemetry GenAI semantic conventions, which are
in Development and have no release, hence no schema URL. Names that begin with `traced_tools.` belong to this package.
"""

from __future__ import annotations

from traced_tools.observe.names.attributes import *
from traced_tools.observe.names.events import *
from traced_tools.observe.names.meanings import *
from traced_tools.observe.names.metrics import *
from traced_tools.observe.names.spans import *
