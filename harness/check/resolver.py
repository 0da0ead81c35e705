"""The releases that a resolver would install for requirements, found by uv. Nothing is installed.

Nothing is built, either: a package of which this Python has no wheel is left out, with its own
requirements. DeepSpeed is the usual one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from harness.check.requirements import Requirements
from harness.system.text import short
from harness.upstream import locks, uv
from harness.upstream.pins import here

TRIES = 12
"""How often packages without wheels, or that no index has, are left out."""
LIMIT = 90.0
"""Seconds for uv, each time."""
LEFT_OUT = ("deepspeed", "flash-attn")
"""Packages without wheels that most files name: each costs a try."""

WITHOUT = re.compile(
    r"Wheels are required for `([\w.-]+)`|([\w.-]+)(?:[=<>!~]=?\S+)? has no (?:usable )?wheels|"
    r"(\S+) was not found in the package registry|no versions? of ([\w.-]+)"
)
"""What uv says of a package that cannot be used."""
NO_INDEX = re.compile(r"error sending request|dns error|network was disabled|Request failed")


class NotResolved(Exception):
    """No set of releases was found; the message says why."""


def resolve(content: Requirements, day: str = "") -> dict[str, str]:
    """The version of each package that these requirements install, as of the end of a day (ISO).

    Raises NotResolved if they contradict each other, or if no index responds.
    """
    left_out = {*LEFT_OUT, *(n for n, package in content.direct.items() if not package.version)}
    for _ in range(TRIES):
        found, errors = _compiled(content, left_out, day)
        if found is not None:
            return {name: version for name, version in found.items() if name not in left_out}
        if NO_INDEX.search(errors):
            raise NotResolved("the package index does not respond")
        more = {name for groups in WITHOUT.findall(errors) for name in groups if name} - left_out
        if not more:
            break
        left_out |= more
    raise NotResolved(short(errors.removeprefix("error: "), 300))


def _compiled(
    content: Requirements, left_out: set[str], day: str
) -> tuple[Mapping[str, str] | None, str]:
    """What ``uv pip compile`` finds, or what it says."""
    bounds = [f"{name}{specifiers}" for name, specifiers in content.bounds.items()]
    with uv.listed(uv.left_out(left_out)) as overrides, uv.listed(bounds) as constraints:
        words = [
            uv.binary(),
            *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-build"),
            *("--override", overrides, "--constraint", constraints),
            *(("--exclude-newer", day) if day else ()),
            *(("--default-index", content.indices[0]) if any(content.indices[:1]) else ()),
            *(("--python-version", python) if (python := _python(content.python)) else ()),
        ]
        try:
            done = subprocess.run(
                words,
                input=_lines(content),
                capture_output=True,
                text=True,
                timeout=LIMIT,
                env={"UV_HTTP_RETRIES": "1", **os.environ},
            )
        except subprocess.TimeoutExpired:
            return None, f"uv did not answer within {LIMIT:.0f} s"
    if done.returncode:
        return None, " ".join(done.stderr.split())
    lines = (line.partition(";")[0].strip() for line in done.stdout.splitlines())
    return locks.versions("\n".join(line for line in lines if "==" in line)), ""


def _lines(content: Requirements) -> str:
    """The requirements as pip reads them."""
    return "".join(
        f"{name}{_extras(content, name)}{specifiers}\n"
        for name, specifiers in content.versions.items()
    )


def _extras(content: Requirements, name: str) -> str:
    extras = ",".join(sorted(content.extras.get(name, ())))
    return f"[{extras}]" if extras else ""


def _python(wanted: str) -> str:
    """The Python to resolve for, if a project is not for this one: the oldest that it is for."""
    try:
        specifiers = SpecifierSet(wanted)
    except InvalidSpecifier:
        return ""
    ours, _ = here()
    if specifiers.contains(f"{ours}.99") or specifiers.contains(ours):
        return ""
    return next((f"3.{n}" for n in range(7, 20) if specifiers.contains(f"3.{n}.99")), "")
