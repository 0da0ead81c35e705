"""The pictures of bugs: every scenario has one, and buggy looks different from fixed in it."""

from __future__ import annotations

import pytest

from harness.bugs import api, catalog
from harness.bugs.api.pictures import Bars, Grid, Lines, Picture
from harness.bugs.api.spec import BUGGY, FIXED, Records
from harness.run.grade import grade_with_records
from harness.system.code import digest
from tests.recording import recorded

RECORDED = recorded()


def pictures(name: str) -> list[Picture]:
    result, trials = grade_with_records(RECORDED[name])
    assert len(trials) == len(result.trials)
    return list(catalog.load(name).picture(trials))


def drawn(picture: Picture, variant: str) -> list[object]:
    """A variant's part of a picture, without its name."""
    rows = {Lines: "points", Bars: "values", Grid: "fields"}[type(picture)]
    series = [row for row in getattr(picture, rows) if row[0].partition(":")[0] == variant]
    return [(row[0].partition(":")[2], *row[1:]) for row in series]


@pytest.mark.parametrize("name", RECORDED)
def test_buggy_looks_unlike_fixed(name: str) -> None:
    for picture in pictures(name):
        assert picture.title
        assert picture.caption
        assert drawn(picture, BUGGY)
        assert drawn(picture, FIXED)
        assert drawn(picture, BUGGY) != drawn(picture, FIXED)


def test_every_scenario_has_a_picture() -> None:
    assert all(hasattr(catalog.load(name), "picture") for name in catalog.names())


def test_a_picture_does_not_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of our own code, under which answers are stored, leaves pictures out."""
    module = catalog.places()["sampler_shards"]
    before = digest(module)
    file = catalog.folder("sampler_shards") / "scenario.py"
    read = type(file).read_text
    text = read(file, encoding="utf-8").replace("picture = coverage.seen_by", "picture = None")
    assert text != read(file, encoding="utf-8")
    monkeypatch.setattr(
        type(file), "read_text", lambda p, **kw: text if p == file else read(p, **kw)
    )
    assert digest(module) == before


def test_device_math_shows_what_the_device_has_besides() -> None:
    powers = {"host": [1.0] * 10, "device": [1.0] * 9 + [1.5]}
    values = {"powers": powers, "kind": "values", "rank": 0}
    (picture,) = catalog.load("device_math").picture({BUGGY: Records({0: [values]})})
    assert picture.values == [*((BUGGY, f"n = {n}", 0.0) for n in range(9)), (BUGGY, "n = 9", 0.5)]


def test_a_picture_of_one_chart_has_the_values_of_each_variant() -> None:
    step = {"kind": "step", "rank": 0, "step": 1, "x": 2.0}
    trials = {"buggy": Records({0: [step]}), "fixed": Records({0: [{**step, "x": 1.0}]})}

    def by_step(records: Records) -> list[tuple[str, float]]:
        return [(f"step {record['step']}", record["x"]) for record in records.of("step")]

    (bars,) = api.bars("title", "caption", by_step, "x", {"right": 1.0})(trials)
    assert bars == Bars(
        "title",
        "caption",
        [("buggy", "step 1", 2.0), ("fixed", "step 1", 1.0)],
        "x",
        {"right": 1.0},
    )
    (lines,) = api.lines("title", "caption", lambda record: record["x"], y="x")(trials)
    assert lines == Lines("title", "caption", [("buggy", 1, 2.0), ("fixed", 1, 1.0)], y="x")
    (grid,) = api.grid("title", "caption", lambda _: [(1, "", "once")], wrong=("never",))(trials)
    fields = [("buggy", 1, "", "once"), ("fixed", 1, "", "once")]
    assert grid == Grid("title", "caption", fields, wrong=("never",))
