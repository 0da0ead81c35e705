"""What upstream's packages do not declare: missing bounds, missing wheels, other module names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from packaging.requirements import Requirement

from harness.upstream.pins import Stack, matches

SOURCE_ONLY = ("deepspeed", "intervaltree")
"""Packages that are published without wheels. They are built here, and are plain Python."""

CONSTRAINTS = {
    "accelerate<0.21": "setuptools<81",  # for pkg_resources
    "datasets<2.14.6": "fsspec<2023.10",  # a newer one gives the local file system two names
    "deepspeed<0.11": "pydantic<2",
    "deepspeed<0.15": "numpy<2",
    "lhotse": "intervaltree<3.2",  # without wheels until then, and 3.2 needs hatchling to be built
    "litdata<0.2.14": "numpy<2",
    "litdata<0.2.64": "setuptools<81",  # for pkg_resources
    "megatron-core<0.10": "numpy",
    "pytorch-lightning<2.4": "setuptools<81",  # for pkg_resources
    "torchmetrics<1.4.1": "setuptools<81",  # for pkg_resources
}
"""Dependencies that a release should have declared: a bound, as a later release breaks it, or a
package that it needs."""

WHEELS_OF = {"megatron-core<0.5": ("3.10",), "megatron-core<0.10": ("3.10", "3.11")}
"""Releases without sources, and the only Pythons that they have wheels for.

Another Python gets the wheel of the last of these, for the plain Python in it. It cannot import the
compiled part, a helper of the data sets; nothing here imports that.
"""


def bounds(pins: Mapping[str, str]) -> list[str]:
    """The dependencies that these releases should have declared."""
    return [bound for when, bound in CONSTRAINTS.items() if matches(when, pins)]


def by_python(stack: Stack) -> list[Stack]:
    """A stack split by the Python whose wheels are installed: first its own Python, then others.

    See WHEELS_OF. The first part may have no pins.
    """
    other: dict[str, dict[str, str]] = {}
    pythons_of: dict[str, tuple[str, ...]] = {}
    for when, pythons in WHEELS_OF.items():
        if matches(when, stack.pins):
            pythons_of.setdefault(Requirement(when).name, pythons)  # the first that matches
    for name, pythons in pythons_of.items():
        if stack.python not in pythons:
            other.setdefault(pythons[-1], {})[name] = stack.pins[name]
    moved = {name for pins in other.values() for name in pins}
    own = {name: version for name, version in stack.pins.items() if name not in moved}
    others = [replace(stack, pins=pins, python=python) for python, pins in other.items()]
    return [replace(stack, pins=own), *others]
