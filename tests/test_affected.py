"""What is recorded of releases: known, replaced, shown in the pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import affected
from harness.cells import Answer
from tests.made_up import NO, UNCLEAR, YES

Recording = Callable[..., None]


def test_a_release_between_two_that_agree_is_known(record: Recording) -> None:
    record(v4_36_2=YES, v4_38_2=NO, v4_40_1=NO, v4_39_0=UNCLEAR)

    def known(version: str) -> Answer | None:
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
    assert [f["answer"] for f in affected.load()["rope_zero_init"]] == ["affected"]
    record(v4_36_2=NO)
    assert [f["answer"] for f in affected.load()["rope_zero_init"]] == ["not affected"]


def test_a_page_shows_what_is_recorded_alike_in_one_row(record: Recording, tmp_path: Path) -> None:
    page = tmp_path / "rope_zero_init.md"
    page.write_text("# A page\n\ntext\n")
    record(v4_36_2=YES, v4_4_0=YES, v4_38_2=NO, v4_39_0=UNCLEAR)
    text = page.read_text()
    assert text.startswith("# A page\n\ntext\n\n<!-- affected: generated -->\n")
    assert "| 4.4.0, 4.36.2 | **affected** | deepspeed 0.13.3 | cpu |" in text
    assert "| because of v4.39.0 |" in text
    page.write_text(text + "\nafter\n")
    record(v4_38_2=YES)
    again = page.read_text()
    assert "| 4.4.0, 4.36.2, 4.38.2 | **affected**" in again
    assert again.endswith("<!-- end of affected -->\n\nafter\n")
    assert again.count("## Affected releases") == 1


def test_the_pages_show_what_the_file_holds() -> None:
    for name, facts in affected.load().items():
        text = (affected.PAGES / f"{name}.md").read_text()
        assert affected.section(name, facts) in text, f"{name}: python -m harness matrix --record"
