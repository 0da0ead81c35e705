"""What is recorded of releases: known, replaced, shown in the pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness import catalog
from harness.sweep import affected
from harness.sweep.cell import Status
from tests.made_up import NO, UNCLEAR, YES

Recording = Callable[..., None]


def test_a_release_between_two_that_agree_is_known(record: Recording) -> None:
    record(v4_36_2=YES, v4_38_2=NO, v4_40_1=NO, v4_39_0=UNCLEAR)

    def known(version: str) -> Status | None:
        found = affected.known("rope_zero_init", "transformers", version)
        return found and found[0]

    assert known("4.36.2") is YES
    assert known("4.38.5") is NO
    assert known("4.39.0") is NO
    assert known("4.37.0") is None, "its neighbours differ"
    assert known("4.41.0") is None, "newer than all that were asked"
    assert known("4.35.0") is None, "older than all that were asked"
    assert affected.known("bf16_clip", "deepspeed", "0.19.8") is None


def test_a_certain_answer_is_replaced_by_a_certain_one_only(record: Recording) -> None:
    record(v4_36_2=YES)
    record(v4_36_2=UNCLEAR)
    assert [f["status"] for f in affected.of("rope_zero_init")] == ["affected"]
    record(v4_36_2=NO)
    assert [f["status"] for f in affected.of("rope_zero_init")] == ["not affected"]


def test_what_is_recorded_alike_shares_a_row(record: Recording) -> None:
    record(v4_36_2=YES, v4_4_0=YES, v4_38_2=NO, v4_39_0=UNCLEAR)
    text = affected.section("rope_zero_init", affected.of("rope_zero_init"))
    assert text.startswith("## Affected releases\n")
    assert "| 4.4.0, 4.36.2 | **affected** | deepspeed 0.13.3 | cpu |" in text
    assert "| because of v4.39.0 |" in text


def test_what_a_scenario_no_longer_covers_goes(
    record: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(v4_36_2=YES, v4_38_2=NO)
    narrowed = replace(catalog.scenario("rope_zero_init"), releases="transformers>=4.38")
    monkeypatch.setattr(catalog, "scenario", lambda _: narrowed)
    record(v4_39_0=NO)
    facts = affected.of("rope_zero_init")
    assert [fact["pins"]["transformers"] for fact in facts] == ["4.38.2", "4.39.0"]
