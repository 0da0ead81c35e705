"""probe still shows what was recorded of each bug."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.bugs import catalog
from harness.run.server_pool import Pool
from harness.training.probe import signatures
from harness.training.probe.prober import Prober
from harness.training.probe.signatures import Signature
from tests.overlays import lent

pytestmark = [pytest.mark.launch, pytest.mark.slow]


def recorded() -> Iterator[Any]:
    """The signature of each bug. Each day CI tests some of the first ones of all packages."""
    packages: set[str] = set()
    for name in catalog.sound():
        signature = signatures.read(catalog.folder(name))
        if signature and signature.loop and signature.signs and not signature.loop.on_gpus:
            subject = catalog.scenario(name).subject
            marks = pytest.mark.exhaustive if subject in packages else pytest.mark.by_day(12)
            packages.add(subject)
            yield pytest.param(name, signature, id=name, marks=marks)


@pytest.mark.parametrize(("name", "signature"), list(recorded()))
def test_the_bug_is_found_as_it_was_recorded(name: str, signature: Signature, pool: Pool) -> None:
    assert signature.loop is not None
    with lent(name, "buggy") as overlays:
        answers = Prober(pool, overlays["buggy"].site)(signature.loop)
    kinds = {sign.kind for sign in signatures.signs_of(answers)}
    assert {sign.kind for sign in signature.signs} <= kinds
