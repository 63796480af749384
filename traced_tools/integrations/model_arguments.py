"""The arguments of a tool that a framework validates with a model of pydantic."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from traced_tools.tools.schema.arguments import ArgumentValidationError, read_json
from traced_tools.tools.schema.json_schema import ArgumentProblem


class ModelArguments:
    """Accepts the arguments that the framework accepts, and shows advisors what the framework makes of them.

    Args:
        model: validates the arguments, with conversions such as that of `"3"` to an integer.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments in JSON text; raise `ArgumentValidationError` if they are invalid."""
        value = read_json(text)
        if not isinstance(value, dict):
            raise ArgumentValidationError([ArgumentProblem((), "must be a JSON object", value)])
        try:
            arguments = self._model.model_validate(value)
        except ValidationError as error:
            invalid = ArgumentValidationError.from_pydantic_error(error, text)
        else:
            return arguments.model_dump(exclude_unset=True, by_alias=True, warnings=False)
        raise invalid  # outside of `except`: pydantic's error quotes values and must not be chained

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of the arguments."""
        json_object: dict[str, Any] = to_jsonable_python(value, by_alias=True, serialize_unknown=True)
        return json_object
