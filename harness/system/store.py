"""Stores results in the cache, each under all that it depends on.

Each is one file, named by a digest of its inputs: releases, parameters, lane, torch, our own code.
The file also contains the inputs; they are compared before the result is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from harness.system import machine
from harness.system.files import write_whole, writing
from harness.system.text import warn_once

T = TypeVar("T")


def read(parsed: Callable[[Any], T], cache: Path, inputs: Mapping[str, Any]) -> T | None:
    """What is stored under exactly these inputs, parsed; None if there is nothing valid.

    ``parsed`` raises ValueError, KeyError or TypeError for content that is not valid.
    """
    inputs = _plain(inputs)
    for folder in (cache / "cells", machine.own_folder(cache, "cells")):
        file = _file(folder, inputs)
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except OSError:
                continue  # it does not exist, or we may not read it
            if content["inputs"] == inputs:
                return parsed(content["cell"])
        warn_once(f"{file} is damaged: its release is tested again")
    return None


def write(cache: Path, inputs: Mapping[str, Any], cell: Any) -> None:
    """Store JSON values under their inputs, for ``read``."""
    inputs = _plain(inputs)
    file = _file(machine.own_folder(cache, "cells"), inputs)
    with writing(file, "HARNESS_CACHE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"inputs": inputs, "cell": cell}
        write_whole(file, json.dumps(content, indent=1) + "\n")


def _plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as they are read again: a tuple is a list then."""
    plain: dict[str, Any] = json.loads(json.dumps(inputs))
    return plain


def _file(folder: Path, inputs: Mapping[str, Any]) -> Path:
    text = json.dumps(inputs, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
