"""The former place of `traced_tools.search`. The next release removes it."""

import lazy_loader

from traced_tools._moved import with_moved

_getattr, __dir__, __all__ = lazy_loader.attach(__name__)
__getattr__ = with_moved(__name__, _getattr)
