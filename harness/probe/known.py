"""Known bugs of the catalogue that look like what a probe has found, in the installed releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from harness import catalog
from harness.api.spec import BUGGY, Scenario
from harness.probe import signatures
from harness.probe.questions import Answers
from harness.probe.signatures import Shown, Signature
from harness.upstream.pins import import_name

Affected = Callable[[str, Mapping[str, str]], str]
"""What says that releases, by package, have a bug; empty if nothing does. ``harness.ranges.lookup``
answers, which must not be imported here."""


@dataclass(frozen=True)
class Known:
    """A bug of the catalogue that may be the one that was found."""

    name: str
    title: str
    why: str
    """What says that the installed releases have it."""


def known(answers: Answers, affected: Affected) -> list[Known]:
    """The bugs with the signature of what was found that the imported releases have."""
    compared = {found.layout.kind for found in answers.layouts if not found.no_answer}
    news = signatures.shown(answers)
    return list(with_signature(news, compared, answers.releases, affected, answers.imported))


def with_signature(
    found: Iterable[Shown],
    layouts: set[str],
    releases: Mapping[str, str],
    affected: Affected,
    imported: Set[str] = frozenset(),
) -> Iterator[Known]:
    """The bugs with this signature that these releases have, and whose code the script imported, if
    that is known.

    ``layouts`` are those that were compared; ``releases`` are by module. Only recorded results
    count: an unknown status is no reason to suspect a bug.
    """
    news = {one.kind for one in found if one.is_news}
    for name in catalog.sound() if news else ():
        signature = signatures.read(catalog.folder(name))
        if signature is None or not _fits(signature, news, layouts):
            continue
        scenario = catalog.scenario(name)
        if imported and not imported >= _files(scenario):
            continue
        have = {p: releases[import_name(p)] for p in scenario.pins if import_name(p) in releases}
        if scenario.subject in have and (why := affected(name, have)):
            yield Known(name, scenario.title, why)


def _fits(signature: Signature, news: set[tuple[str, str, str]], layouts: set[str]) -> bool:
    """Whether everything that the bug shows in these layouts was found."""
    own = {one.kind for one in signature.shown}
    here = {kind for kind in own if kind[0] in ("", *layouts)}
    return bool(here) and here <= news


def _files(scenario: Scenario) -> set[str]:
    """The files with a bug, relative to site-packages."""
    return {*scenario.files, *(defect.file for defect in scenario.variant(BUGGY).defects)}
