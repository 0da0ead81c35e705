"""What content has that its schema in docs/schemas does not allow."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from xml.etree import ElementTree

import jsonschema

from harness.system.files import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
XSD = "{http://www.w3.org/2001/XMLSchema}"


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


def names_in(element: ElementTree.Element) -> set[tuple[str, str]]:
    """Each element of a document with each of its attributes."""
    return {(e.tag, name) for e in element.iter() for name in ("", *e.attrib)}


def names_of_the_schema() -> set[tuple[str, str]]:
    """The elements of junit.xsd with their attributes."""
    root = ElementTree.parse(SCHEMAS / "junit.xsd").getroot()
    kinds = {kind.get("name"): kind for kind in root.findall(f"{XSD}complexType")}
    names = set()
    for element in root.iter(f"{XSD}element"):
        name = element.get("name") or element.get("ref") or ""
        names.add((name, ""))
        inside = kinds.get(element.get("type"), element)
        for kind in (inside, *inside.findall(f"{XSD}complexType")):
            attributes = kind.findall(f"{XSD}attribute") + kind.findall(f".//{XSD}extension/*")
            names |= {(name, attribute.get("name", "")) for attribute in attributes}
    return names
