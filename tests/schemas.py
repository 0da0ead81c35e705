"""What content has that its schema in docs/schemas does not allow."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from harness.system.files import ROOT

SCHEMAS = ROOT / "docs" / "schemas"


def complaints(name: str, content: Any) -> list[str]:
    """A line for each place where the content is not what the schema in docs/schemas says."""
    return violations(json.loads((SCHEMAS / name).read_text()), content)


def violations(schema: Any, content: Any) -> list[str]:
    """A line for each place where the content is not what a schema says, by the schema's draft."""
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return [f"{list(error.path)}: {error.message}" for error in kind(schema).iter_errors(content)]
