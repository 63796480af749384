"""Policies: rules that allow or deny tool calls by tool, caller and arguments."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
