"""Pages and the table of bugs, made of the code and of recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import catalog
from harness.__main__ import main
from harness.commands import pages


@pytest.fixture
def own(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for pages, and a table of bugs, of the test's own."""
    monkeypatch.setattr(pages, "BUGS", tmp_path / "bugs.md")
    return tmp_path


def test_every_bug_is_in_the_table() -> None:
    text = pages.BUGS.read_text()
    assert text == pages.with_table(text), "python -m harness pages"


def test_a_page_tells_all_that_the_code_says(own: Path) -> None:
    text = pages.page("sampler_shards")
    scenario = catalog.scenario("sampler_shards")
    for part in (
        "# sampler_shards\n",
        "A DataLoader with `shuffle=True` that accelerate has prepared shuffles",
        f"| documented symptom | {scenario.symptom} |",
        f"| remedy | {scenario.remedy} |",
        "accelerate 0.29.3 (buggy, control) / 0.30.0 (fixed) / 1.15.0 (alive)",
        "| `fixed` | accelerate 0.30.0 as published | on | clean |",
        "| `control` | 0.29.3 with the same seed on all ranks | off | clean |",
        "| `scenario.samples=64` | size of the dataset; at least 8; a multiple of 8 |",
        "*The symptom:* In some epoch the ranks together did not see the dataset",
    ):
        assert part in text


def test_what_is_written_by_hand_is_kept_and_all_else_made_anew(own: Path) -> None:
    pages.write(["device_math"])
    page = own / "scenarios" / "torch" / "device_math" / "README.md"
    mine = f"{pages.BY_HAND}\n## Mine\n\nAnd not the code's.\n{pages.END}"
    page.write_text(page.read_text().replace(f"{pages.BY_HAND}\n{pages.END}", mine) + "astray\n")
    pages.write(["device_math"])
    assert mine in page.read_text()
    assert "astray" not in page.read_text()


def test_the_table_is_replaced_and_nothing_else(own: Path) -> None:
    bugs = own / "bugs.md"
    bugs.write_text(f"before\n\n{pages.TABLE}\nstale\n{pages.TABLE_END}\n\nafter\n")
    assert main(["pages", "bf16_clip"]) == 0
    text = bugs.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    assert "stale" not in text
    for name in catalog.names():
        assert text.count(f"/{name}/README.md)") == 1


def test_a_page_of_no_scenario_is_a_mistake(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pages", "bf16_clop"]) == 2
    assert "did you mean bf16_clip?" in capsys.readouterr().err
    assert not list(own.iterdir())
