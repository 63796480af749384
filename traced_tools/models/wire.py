"""Reading what a provider sent: bodies as pydantic models, and errors that say where it is wrong and quote nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from traced_tools.errors import InvalidResponse

W = TypeVar("W", bound="Body")


class Wire(BaseModel):
    """A part of a body, as far as we read it; everything else in it is ignored."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class Body(Wire):
    """A whole body, or an event of a stream.

    A non-empty `error` means that there is no answer, whatever the HTTP status and the other fields say.
    """

    error: Any = None


def read(kind: type[W], body: str | bytes, what: str, provider: str) -> W:
    """Return `body` as `kind`; raises `InvalidResponse` that says what is wrong and where, and quotes nothing."""
    try:
        found = kind.model_validate_json(body)
    except ValidationError as error:
        problem = _problem(error)
    else:
        if not found.error:
            return found
        raise InvalidResponse(f"{what} is an error object", provider=provider, code=code_of(found.error))
    raise InvalidResponse(f"{what} cannot be understood: {problem}", provider=provider)


def code_of(error: object) -> object:
    """Return the short code of an error object, whichever provider's: `status` (Google), `code` or `type`.

    A name counts before a number: many servers repeat the HTTP status as the code.
    """
    if not isinstance(error, Mapping):
        return None
    codes = [code for code in map(error.get, ("status", "code", "type", "error_type")) if code]
    return next((code for code in codes if not str(code).isdigit()), codes[0] if codes else None)


def written(value: object) -> str:
    """Return a decoded JSON value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(place) for place in first["loc"])
    return f"{where}: {first['type']}" if where else str(first["type"])
