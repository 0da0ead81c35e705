"""probe still shows of each bug what was recorded of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import catalog
from harness.probe import signatures
from harness.probe.prober import Prober
from harness.probe.signatures import Signature
from harness.trial.server_pool import Pool
from tests.overlays import lent

pytestmark = [pytest.mark.launch, pytest.mark.slow]

FOUND = [
    pytest.param(name, found, id=name)
    for name in catalog.sound()
    if (found := signatures.read(catalog.folder(name))) and found.shown
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.mark.parametrize(("name", "signature"), FOUND)
def test_the_bug_is_found_as_it_was_recorded(name: str, signature: Signature, pool: Pool) -> None:
    assert signature.loop is not None
    with lent(name, "buggy") as overlays:
        answers = Prober(pool, overlays["buggy"].site)(signature.loop)
    shown = {one.kind for one in signatures.shown(answers)}
    assert {one.kind for one in signature.shown} <= shown
