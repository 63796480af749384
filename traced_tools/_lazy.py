"""Imports names when they are first used (PEP 562), so that importing the package is fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

_NONE_MOVED: Mapping[str, str] = MappingProxyType({})


def lazy_exports(
    package: str, exports: Mapping[str, str], moved: Mapping[str, str] = _NONE_MOVED
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`.

    Args:
        package: the name of the package.
        exports: maps each name to the module that defines it.
        moved: maps each name that the package offered before to the package that offers it now. Such a name is still
            importable, with a `DeprecationWarning`.
    """

    def load(name: str) -> object:
        if name in moved:
            import warnings  # few processes need it

            where = moved[name]
            warnings.warn(
                f"{name} has moved: import it from {where}; the next release removes it from {package}",
                DeprecationWarning,
                stacklevel=2,
            )
            value: object = getattr(import_module(where), name)
            return value
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(exports[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(exports)

    return load, names
