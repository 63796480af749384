"""A tool-calling loop for agents in which every step is an OpenTelemetry span.

Importing the package is cheap: each name imports its module on first use.
"""

import lazy_loader

from traced_tools._moved import with_moved

_getattr, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_moved(__name__, _getattr)
