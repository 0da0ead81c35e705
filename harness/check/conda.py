"""The output of ``conda list --json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from harness.check.installed import ALIASES, EDITABLE, Listed
from harness.check.source import Source
from harness.system.errors import UserError

DEVELOP = "<develop>"
"""The channel that conda names for an editable install."""


def entries(source: Source) -> list[Listed]:
    """The packages in the output, by the names that pip has for them.

    Raises UserError for any other JSON, also for that of ``pip list``: it looks like conda's, but
    does not say which packages came from git.
    """
    try:
        content = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source.name} is not valid JSON: {error}") from None
    if not (isinstance(content, list) and all(isinstance(one, dict) for one in content)):
        raise UserError(f"{source.name} is not what 'conda list --json' writes")
    return [_entry(one, source.name) for one in content]


def _entry(package: Mapping[str, Any], file: str) -> Listed:
    name, version = package.get("name"), package.get("version")
    if not (isinstance(name, str) and isinstance(version, str) and "channel" in package):
        raise UserError(
            f"{file} is not what 'conda list --json' writes; for pip, use the output of pip freeze"
        )
    name = canonicalize_name(name)
    origin = EDITABLE if package["channel"] == DEVELOP else ""
    return Listed(ALIASES.get(name, name), version, origin)
