"""Pages and the table of bugs come from the code and recorded runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.spec import HARMS
from harness.bugs.periods import alive
from harness.cli import pages
from harness.publish import docs_tables, field, markdown_pages
from harness.publish.alive import alive_bugs
from harness.publish.markdown_pages import BY_HAND, END


@pytest.fixture
def pages_folder(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for pages and documents."""
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", docs_tables.PARTS)
def test_the_generated_part_of_a_page_is_up_to_date(name: str) -> None:
    text = (pages.DOCS / name).read_text()
    assert text == docs_tables.updated(name, text), "python -m harness pages"


@pytest.mark.parametrize("name", pages.WHOLE)
def test_a_page_that_is_written_as_a_whole_is_up_to_date(name: str) -> None:
    assert (pages.DOCS / name).read_text() == pages.WHOLE[name](), "python -m harness pages"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[other]\nname = ''\nabout = ''\nbugs = []", "named_by has attest.*, not one of other"),
        (
            "[attest]\nname = ''\nabout = ''\nbugs = [{id = 'x/y#1', what = '', status = 'bad'}]",
            "attest: x/y#1 is 'bad', not one of near, open",
        ),
        ("[attest]\nname = ''\nabout = ''\ntotal = 3\nbugs = []", "attest has 1 bugs, not 3"),
    ],
)
def test_a_bug_of_another_list_has_a_scenario_or_a_status(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "field.toml"
    file.write_text(text)
    monkeypatch.setattr(field, "FILE", file)
    monkeypatch.setattr(field, "_answered", lambda: {"attest": {"a bug": ["bf16_clip"]}})
    with pytest.raises(ValueError, match=complaint):
        field.bug_lists()


def test_the_documents_have_one_address_of_the_repository() -> None:
    for file in pages.ADDRESSED:
        text = file.read_text()
        assert text == pages.with_address(text), "python -m harness pages"
    assert pages.with_address("https://github.com/x/distributed-bugs/issues").count("/x/") == 0
    uses = "uses: x/distributed-bugs@v0.0.0\n  rev: v0.0.0\n"
    assert not re.search(r"x/|0\.0\.0", pages.with_address(uses))


def test_a_page_that_a_person_writes_has_at_most_150_lines() -> None:
    generated = {*pages.WHOLE, *docs_tables.PARTS} - {"evidence.md", "trust.md"}
    lengths = {
        page.name: len(page.read_text().splitlines())
        for page in pages.DOCS.glob("*.md")
        if page.name not in generated
    }
    assert {name: lines for name, lines in lengths.items() if lines > 150} == {}


def test_the_page_of_living_bugs_says_what_to_do_and_who_knows() -> None:
    text = markdown_pages.of_living()
    order = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert order == [bug.name for bug in alive_bugs()]
    assert "| loses data | silent | in older releases |" in text
    assert set(order) == {name for name in catalog.sound() if alive(name)}
    harms = [HARMS.index(catalog.scenario(name).harm) for name in order]
    assert harms == sorted(harms)
    for part in (
        "| release | accelerate 1.15.0 |",
        "| trigger | 1.15.0 with its seedable sampler, which the fix left out |",
        "| our run showed | epoch 1: 45 of 64 samples seen",
        "| harm | loses data; silent |",
        "| command | `distributed-bugs run scenario=sampler_shards variant=alive` |",
        "of the bug in 0.25.0 to 0.29.3, fixed in 0.30.0: <https://github.com/huggingface/",
        "`distributed-bugs run scenario=tied_resume_norm` |",
        "variant=released pins.deepspeed=0.19.8` |",
        "[report.md](../scenarios/deepspeed/tied_resume_norm/report.md), [report.py](",
    ):
        assert part in text


def test_the_page_of_living_bugs_stays_while_a_scenario_is_broken(
    pages_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive_file = pages_folder / "alive.md"
    alive_file.write_text("all of them")
    monkeypatch.setattr(catalog, "broken", lambda: {"rope_zero_init": "it is broken"})
    pages.write([])
    assert alive_file.read_text() == "all of them"
    monkeypatch.setattr(catalog, "broken", dict)
    pages.write([])
    assert alive_file.read_text().startswith("# Alive")


def test_a_page_tells_all_that_the_code_says(pages_folder: Path) -> None:
    text = markdown_pages.of_bug("sampler_shards")
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


def test_what_is_written_by_hand_is_kept_and_all_else_made_anew(pages_folder: Path) -> None:
    pages.write(["device_math"])
    page = pages_folder / "scenarios" / "torch" / "device_math" / "README.md"
    mine = f"{BY_HAND}\n## Mine\n\nAnd not the code's.\n{END}"
    page.write_text(page.read_text().replace(f"{BY_HAND}\n{END}", mine) + "astray\n")
    pages.write(["device_math"])
    assert mine in page.read_text()
    assert "astray" not in page.read_text()


def test_the_generated_part_is_replaced_and_nothing_else(pages_folder: Path) -> None:
    bugs = pages_folder / "bugs.md"
    begin, end = "<!-- the bugs: generated -->", "<!-- end of the bugs -->"
    bugs.write_text(f"before\n\n{begin}\nan old table\n{end}\n\nafter\n")
    assert main(["pages", "bf16_clip"]) == 0
    text = bugs.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    assert "an old table" not in text
    for name in catalog.names():
        assert text.count(f"/{name}/README.md)") == 1
