"""Overlays for tests that launch: one is made if the user's cache does not have it yet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.bugs import catalog, pins
from harness.bugs.pins import Stack, here
from harness.releases import overlay, resolution
from harness.releases.overlay import Overlay
from harness.system.machine import cache_folder

DAYS = 15
"""CI runs each bug every fifteenth day: all of them take it half an hour on 2 cores. A scenario and
its report.py have the same day, so that they use the same overlays."""


@contextmanager
def lent(scenario: str, *variants: str, cache: Path | None = None) -> Iterator[dict[str, Overlay]]:
    """The overlays of a scenario's variants, by variant, from the user's cache or another one."""
    of, cache = catalog.scenario(scenario), cache or cache_folder()
    with ExitStack() as contexts:
        overlays = {}
        for variant in variants:
            stack = resolution.stack(of, pins.complete(of, of.pins_of(variant)), cache)
            borrowed = overlay.borrow(stack, of.variant(variant).defects, cache)
            overlays[variant] = contexts.enter_context(borrowed)
        yield overlays


@contextmanager
def lent_release(scenario: str, release: str) -> Iterator[Overlay]:
    """The overlay of a release of a scenario's subject, as published, from the user's cache."""
    of, cache = catalog.scenario(scenario), cache_folder()
    stack = resolution.stack(of, pins.complete(of, {of.subject: release}), cache)
    with overlay.borrow(stack, (), cache) as loan:
        yield loan


@contextmanager
def lent_packages(day: str, **pins: str) -> Iterator[Overlay]:
    """An overlay of packages that no scenario is about, with the dependencies of a day (ISO)."""
    python, platform = here()
    with overlay.borrow(Stack(pins, day, python, platform), (), cache_folder()) as loan:
        yield loan


def copy(original: Overlay, cache: Path) -> Path:
    """Copy an overlay into another cache, as hard links if possible; returns its folder."""
    folder = cache / "overlays" / original.key
    shutil.copytree(original.folder, folder, copy_function=_link_or_copy)
    return folder


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)
