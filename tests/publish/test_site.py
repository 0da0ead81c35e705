"""The site: its content, its links, and what it refuses to replace."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import pytest

from harness.__main__ import main
from harness.bugs import advisories, catalog
from harness.bugs.api.pictures import Bars, Grid, Lines, Picture
from harness.cli.site import SITE
from harness.publish.alive import alive_bugs
from harness.publish.charts import chart
from harness.publish.history import Nightly, recorded_results, writing
from harness.rank import run_folder
from harness.system import files
from harness.system.files import ROOT
from tests.made_site import EVIL, a_bare_site, a_history, a_site
from tests.made_up import full_disk
from tests.recording import Recording
from tests.sandbox import refused

MOST = 3_000_000
"""Bytes of a page with its scripts."""


class Page(HTMLParser):
    """The links, loaded files, ids and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.unnamed: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a":
            self.links.append(attributes.get("href") or "")
        elif attributes.get("src") or tag == "link":
            self.loads.append(attributes.get("src") or attributes.get("href") or "")
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        if attributes.get("role") in ("img", "region") and not attributes.get("aria-label"):
            self.unnamed.append(tag)
        self.scripts += tag == "script"


def pages_of(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def check_has(file: Path, *parts: str) -> None:
    text = file.read_text()
    assert [part for part in parts if part not in text] == []


SHOWN = ("bf16_clip", "rope_zero_init", "trainer_gas_twice")
"""The bugs that a small history is about."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a small history, and of the bugs that it is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "sound", lambda: SHOWN)
        return a_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of all bugs, with no history and no run: it takes 10 s, so its tests are slow."""
    return a_bare_site(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites have only two bugs: a tenth of the time."""
    monkeypatch.setattr(catalog, "sound", lambda: ("bf16_clip", "warmup_first_step"))


@pytest.fixture
def small(few: None, tmp_path: Path) -> Path:
    """A site with two bugs, in its own folder."""
    return a_bare_site(tmp_path)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory without a history: a checkout may have one."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("fixture", ["site", pytest.param("bare", marks=pytest.mark.slow)])
def test_every_link_and_loaded_file_exists(fixture: str, request: pytest.FixtureRequest) -> None:
    pages = pages_of(request.getfixturevalue(fixture))
    for path, page in pages.items():
        for link in page.links:
            address, fragment = urldefrag(link)
            target = (path.parent / address).resolve() if address else path
            partly = fixture == "site" and target.parent.name == "bugs"  # it has three of all bugs
            if link.startswith("https://") or partly:
                continue
            assert target.is_file(), f"{path.name} leads to {link}"
            is_search = "=" in fragment
            assert not fragment or is_search or fragment in pages[target].ids, link
        for address in page.loads:
            assert address == "data:," or (path.parent / address).is_file(), address


@pytest.mark.slow
def test_every_bug_and_every_tested_upstream_has_a_page(site: Path, bare: Path) -> None:
    for folder, names in ((site, SHOWN), (bare, catalog.names())):
        assert {path.stem for path in (folder / "bugs").iterdir()} == set(names)
    assert {path.stem for path in (site / "upstreams").iterdir()} == {"transformers"}
    tested = {result.package for result in recorded_results()}
    assert {path.stem for path in (bare / "upstreams").iterdir()} == tested


@pytest.mark.slow
def test_a_page_is_small_and_its_charts_have_labels_and_its_ids_are_unique(
    site: Path, bare: Path
) -> None:
    for path, page in {**pages_of(site), **pages_of(bare)}.items():
        loaded = [path.parent / address for address in page.loads if address != "data:,"]
        assert sum(file.stat().st_size for file in [path, *loaded]) < MOST
        assert not page.unnamed, path
        assert len(page.ids) == len(set(page.ids)), path


def test_a_bugs_page_has_its_story_findings_and_commands(site: Path) -> None:
    check_has(
        site / "bugs" / "bf16_clip.html",
        catalog.scenario("bf16_clip").title,
        "<code>get_grads_for_norm</code>",
        "the global gradient norm differs between ranks: no alarm",
        'href="https://github.com/microsoft/DeepSpeed/pull/1801"',
        "use any published release of DeepSpeed; none has this bug",
        "The greatest difference between the copies of a weight",
        "2 NVIDIA H200",
        "step 1: 12 of 15 replicated parameters differ",
        "distributed-bugs run scenario=bf16_clip",
        "<code>control</code>: in <code>deepspeed/",
    )


def test_text_of_others_is_escaped(site: Path) -> None:
    text = (site / "nightlies.html").read_text()
    page, inline = Page(text), text.count('<script type="application/json">')
    assert page.scripts == inline + sum(file.endswith(".js") for file in page.loads)
    for path in site.rglob("*.html"):
        assert EVIL not in path.read_text(), path
    for name in ("nightlies.html", "upstreams/transformers.html"):
        check_has(site / name, "&lt;script&gt;alert(1)&lt;/script&gt;")


@pytest.mark.slow
def test_the_page_of_nightlies_has_verdicts_and_changes(site: Path, bare: Path) -> None:
    verdict, page = "our own: reproduced in 8 s", site / "nightlies.html"
    check_has(page, "now affected", "2026-02-17", verdict, "2026-11-21 03:00")
    check_has(bare / "nightlies.html", "distributed-bugs watch")


def test_a_bug_is_alive_if_the_newest_release_is_affected(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "transformers 5.23.0: alive" in text
    assert text.count('data-alive="yes"') == 1


@pytest.mark.slow
def test_the_page_of_living_bugs_is_of_the_history_if_there_is_one(site: Path, bare: Path) -> None:
    """The small history has results of only two bugs; one of them is alive."""
    headings = re.compile(r'<h2 id="(\w+)">')
    alive_page = "docs/alive.html"
    assert headings.findall((site / alive_page).read_text()) == ["rope_zero_init"]
    recorded = (bare / alive_page).read_text()
    assert headings.findall(recorded) == [bug.name for bug in alive_bugs()]
    alive = recorded.count("our run showed")
    assert (bare / "index.html").read_text().count('data-alive="yes"') == alive
    check_has(
        bare / alive_page,
        "distributed-bugs run scenario=sampler_shards variant=alive",
        "45 of 64 samples seen",
        "<td>no; related: <a href=",
    )
    check_has(bare / "index.html", "accelerate 1.15.0: alive with another trigger")


@pytest.mark.slow
def test_the_site_has_the_advisories(bare: Path) -> None:
    files = {path.name: path.read_text() for path in (bare / "advisories").iterdir()}
    assert files == advisories.files()
    page = pages_of(bare)[bare / "advisories.html"]
    linked = {link for link in page.links if link.startswith("advisories/")}
    assert linked == {f"advisories/{name}" for name in files}
    check_has(bare / "advisories.html", "4.31.0 (or from 4.28) to 4.37.2; 4.38.0 is not affected")
    check_has(bare / "advisories.html", "device_math</a>: no release was tested")


def test_the_pictures_of_the_docs_exist_and_are_small() -> None:
    file = ROOT / "docs" / "site.md"
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", file.read_text())
    assert pictures
    for picture in pictures:
        assert 0 < (file.parent / picture).stat().st_size < 150_000, picture


# What it refuses


Capture = pytest.CaptureFixture[str]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("stranger", ["thesis.tex", "site.json", "bugs/notes.txt"])
def test_a_folder_with_other_files_is_refused_and_unchanged(
    stranger: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "out" / stranger
    file.parent.mkdir(parents=True)
    file.write_text('{"mine": true}')
    assert f"contains a file that is not part of a site ({stranger})" in refused(
        capsys, ["site", "--out", str(tmp_path / "out")]
    )
    assert "is not a folder" in refused(capsys, ["site", "--out", str(file)])
    assert content(tmp_path) == {f"out/{stranger}": b'{"mine": true}'}


def test_a_site_with_a_foreign_file_is_refused_and_unchanged(small: Path, capsys: Capture) -> None:
    (small / "CNAME").write_text("bugs.example")
    before = content(small)
    assert "(CNAME)" in refused(capsys, ["site", "--out", str(small)])
    assert content(small) == before


def test_a_site_is_replaced_completely(small: Path) -> None:
    stale, gone = small / "bugs" / "bf16_clip.html", small / "bugs" / "gone.html"
    stale.write_text("stale")
    gone.write_text("a bug that was deleted")
    mark = json.loads((small / SITE.mark).read_text())
    mark["files"].append("bugs/gone.html")
    (small / SITE.mark).write_text(json.dumps(mark))
    assert main(["site", "--out", str(small)]) == 0
    assert "stale" not in stale.read_text()
    assert not gone.exists()
    assert os.listdir(small.parent) == ["site"], "a file is left beside it"


def test_the_old_site_stays_if_the_new_one_cannot_be_written(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    before = content(small)
    monkeypatch.setattr(files, "_write", full_disk)
    assert "no room on the disk" in refused(capsys, ["site", "--out", str(small)], code=3)
    assert content(small) == before
    assert os.listdir(small.parent) == ["site"]


def test_the_history_in_the_working_directory_is_the_default(
    few: None, elsewhere: Path, capsys: Capture
) -> None:
    a_history(elsewhere / "history.jsonl")
    assert main(["site", "--out", "site"]) == 0
    assert "2 bugs, 2 with a run, 3 nightlies: site/index.html" in capsys.readouterr().out


def test_a_run_or_a_picture_that_fails_is_reported_and_does_not_affect_others(
    few: None,
    recording: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def broken(_: object) -> Iterator[Picture]:
        yield Lines("one", "words", [])
        raise KeyError("differing")

    words = ["site", "--out", str(tmp_path / "site")]
    with monkeypatch.context() as patch:
        patch.setattr(catalog.load("bf16_clip"), "picture", broken)
        assert main(words) == 0
    assert "no picture of bf16_clip: KeyError: 'differing'" in capsys.readouterr().out
    (recording.folder / "buggy" / "exit.json").unlink()
    read = run_folder.recorded
    mine = nullcontext(recording.folder)
    monkeypatch.setattr(
        run_folder, "recorded", lambda name: mine if name == "bf16_clip" else read(name)
    )
    assert main(words) == 0
    assert f"{recording.folder} is not used: buggy: " in capsys.readouterr().out
    check_has(tmp_path / "site/bugs/warmup_first_step.html", "The learning rate")


# Charts


def layers(picture: Picture) -> list[dict[str, Any]]:
    """The layers of lines, each with its rows."""
    spec = chart(picture).spec or {}
    rows = spec["datasets"]
    return [
        {**layer, "rows": rows[layer.get("data", spec.get("data"))["name"]]}
        for layer in spec["layer"]
    ]


def test_an_axis_of_magnitudes_has_room_for_zero_and_lines_have_gaps() -> None:
    points = [("buggy", 1, 0.5), ("buggy", 2, math.nan), ("fixed", 1, 0.0), ("fixed", 2, None)]
    line = layers(Lines("t", "words", points, log=True))[0]
    assert [row["value"] for row in line["rows"]] == [0.5, None, 0.0, None]
    y = line["encoding"]["y"]
    assert (y["scale"]["type"], y["scale"]["domain"]) == ("symlog", [0.0, 1.0])
    assert y["axis"]["values"] == [0.0, 0.1]


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1.0, 5.0], [None, math.inf]])
def test_values_without_a_magnitude_get_a_plain_axis(values: list[float | None]) -> None:
    points = [("buggy", step, value) for step, value in enumerate(values)]
    assert "scale" not in layers(Lines("t", "words", points, log=True))[0]["encoding"]["y"]


def test_the_table_of_a_chart_is_limited() -> None:
    drawn = chart(Lines("t", "words", [("buggy", n, math.inf) for n in range(1000)]))
    assert drawn.rows[0] == ("buggy", "0", "inf")
    assert (len(drawn.rows), drawn.left_out) == (400, 600)


def test_the_bars_of_a_name_are_side_by_side_and_the_longest_has_the_whole_width() -> None:
    values = [("fixed", "a", 1.0), ("fixed", "b", 0.0), ("buggy", "a", -2.0), ("buggy", "b", 1.5)]
    bars = chart(Bars("t", "words", values, limits={"most": 1.0})).bars
    assert [(bar.name, bar.variant, bar.share) for bar in bars] == [
        ("a", "buggy", 1.0),
        ("a", "fixed", 0.5),
        ("b", "buggy", 0.75),
        ("b", "fixed", 0.0),
        ("most", "limit", 0.5),
    ]


def test_a_grid_marks_wrong_words_and_shades_numbers() -> None:
    words = chart(
        Grid("t", "words", [("buggy", 1, "x", "lost"), ("buggy", 2, "x", "kept")], wrong=("lost",))
    )
    ((name, fields),) = words.panels[0].rows
    assert (name, [field.sign for field in fields]) == ("x", ["●", "○"])
    numbers = chart(
        Grid("t", "words", [("buggy", 1, "x", 1), ("buggy", 3, "y", 5), ("fixed", 1, "x", None)])
    )
    assert [field.text for _, row in numbers.panels[0].rows for field in row] == ["1", "", "", "5"]
    assert "var(--most) 100%" in numbers.panels[0].rows[1][1][1].style


def test_two_nightlies_of_one_day_have_different_names(few: None, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    with writing(file) as history:
        for started in ("2026-11-22T01:22:40Z", "2026-11-22T03:05:00Z", "2026-11-23T01:00:00Z"):
            history.append(Nightly(started[:10], started, {}, started))
    names = ["2026-11-22 01:22", "2026-11-22 03:05", "2026-11-23 01:00"]
    assert main(["site", "--out", str(tmp_path / "site"), "--history", str(file)]) == 0
    page = (tmp_path / "site" / "nightlies.html").read_text()
    assert all(page.count(f"<span>{name}</span>") == 1 for name in names)
