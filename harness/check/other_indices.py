"""Packages from an index that a project names for them alone. It is not asked: either its releases
of torch are known, or nobody knows which one is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.check.contradictions import exact_versions, is_impossible
from harness.check.requirement_lines import Line, Purpose, Skipped, parse_line
from harness.system.documents import as_list, as_table, table_at, text_at
from harness.system.text import short

USUAL = "pypi"
TORCHES = ("torch", "torchvision", "torchaudio")
"""What torch's own indices have, one for each build."""
OF_CUDA = {
    "cu116": ">=1.12,<2",
    "cu117": ">=1.13,<2.1",
    "cu118": ">=2,<2.8",
    "cu121": ">=2.1,<2.6",
    "cu124": ">=2.4,<2.7",
}
"""The releases of torch in an index for a release of CUDA, of those that have ended.
Source: https://pytorch.org/get-started/previous-versions"""


def tables(document: Mapping[str, Any], *tool: str) -> Iterator[Mapping[str, Any]]:
    """The tables about indices, under the last of these keys."""
    for table in as_list(table_at(document, *tool[:-1]).get(tool[-1]), ".".join(tool)):
        yield as_table(table, f"an entry of {'.'.join(tool)}")


def addresses(document: Mapping[str, Any]) -> dict[str, str]:
    """The addresses of indices by name, in a pyproject.toml or a Pipfile."""
    places = (("tool", "uv", "index"), ("tool", "poetry", "source"), ("tool", "pdm", "source"))
    every = (table for place in (*places, ("source",)) for table in tables(document, *place))
    return {text_at(table, "name"): text_at(table, "url") for table in every}


def from_index(line: Line, index: str, addresses: Mapping[str, str]) -> list[Line]:
    """The lines for a package from an index with this name; empty for the usual one."""
    requirement = line.requirement
    is_usual = index.lower() in ("", USUAL)
    if requirement is None or is_usual or exact_versions(requirement.specifier):
        return [line]
    name = canonicalize_name(requirement.name)
    words = {*re.findall(r"[a-z0-9]+", f"{index} {addresses.get(index, '')}".lower())}
    if name in TORCHES and "nightly" not in words:
        bounds = [bound for build, bound in OF_CUDA.items() if build in words]
        if "cpu" in words or (bounds and name != TORCHES[0]):
            return [line]
        if bounds and not is_impossible(requirement.specifier & SpecifierSet(bounds[0])):
            return [line, parse_line(f"{name}{bounds[0]}", Purpose.CONSTRAINT)]
    because = f"it comes from the index {short(index)}, which is not asked"
    return [Line(line.text, (Skipped(name, because),))]
