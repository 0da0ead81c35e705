"""What content has that its schema in docs/schemas does not allow."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from harness.system.files import ROOT

SCHEMAS = ROOT / "docs" / "schemas"


def complaints(name: str, content: Any) -> list[str]:
    """A line for each place where the content is not what the schema in docs/schemas says."""
    return _lines(_of_docs(name), content)


def violations(schema: Any, content: Any) -> list[str]:
    """A line for each place where the content is not what a schema says, by the schema's draft."""
    return _lines(_validator(schema), content)


@cache
def _of_docs(name: str) -> Any:
    return _validator(json.loads((SCHEMAS / name).read_text()))


def _validator(schema: Any) -> Any:
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def _lines(validator: Any, content: Any) -> list[str]:
    return [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(content)]
