"""Typed events of a run, and exporters that send them to files, servers, consoles and subscribers."""

import lazy_loader

from traced_tools._moved import with_moved

_getattr, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_moved(__name__, _getattr)
