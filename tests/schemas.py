"""What content has that its schema in docs/schemas does not allow."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from harness.system.files import ROOT

SCHEMAS = ROOT / "docs" / "schemas"


def complaints(name: str, content: Any) -> list[str]:
    """A line for each place where the content is not what the schema says."""
    schema = json.loads((SCHEMAS / name).read_text())
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    return [f"{list(error.path)}: {error.message}" for error in kind(schema).iter_errors(content)]
