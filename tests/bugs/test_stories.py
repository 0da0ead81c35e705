"""The stories: which of several bugs each release has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Story
from harness.bugs.results import Status
from harness.publish import markdown_pages

WRONG, RIGHT, UNSURE = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE
TWO = Story("two", "Two bugs", "One.\n\nThe other.", ("first", "second"))


def spans(
    monkeypatch: pytest.MonkeyPatch, statuses: Mapping[str, Mapping[str, Status]]
) -> list[str]:
    monkeypatch.setattr(markdown_pages, "tested", lambda name: dict(statuses[name]))
    marks = {WRONG: "x", RIGHT: "-", UNSURE: "?", None: " "}
    return [
        f"{span}: {''.join(marks[span.statuses[name]] for name in TWO.scenarios)}"
        for span in markdown_pages.spans(TWO)
    ]


def test_releases_with_equal_statuses_are_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    of_first = {"1.0": RIGHT, "1.1": WRONG, "1.2": WRONG, "1.10": RIGHT}
    of_second = {"1.0": RIGHT, "1.1": RIGHT, "1.2": RIGHT, "1.10": UNSURE}
    assert spans(monkeypatch, {"first": of_first, "second": of_second}) == [
        "1.0: --",
        "1.1 to 1.2: x-",
        "1.10: -?",
    ]


def test_an_untested_release_has_the_status_of_neighbours_that_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_first = {"1.0": WRONG, "1.0.2": WRONG, "1.4": RIGHT}
    of_second = {"1.0": RIGHT, "1.0.1": RIGHT, "1.3": WRONG, "1.4": WRONG}
    assert spans(monkeypatch, {"first": of_first, "second": of_second}) == [
        "1.0 to 1.0.1: x-",
        "1.0.2: x ",
        "1.3:  x",
        "1.4: -x",
    ]


@pytest.mark.parametrize("story", markdown_pages.stories(), ids=lambda story: story.name)
def test_a_story_is_about_scenarios_of_one_package(story: Story) -> None:
    assert {catalog.scenario(name).subject for name in story.scenarios} == {
        markdown_pages.subject(story)
    }


def test_a_page_names_each_bug_with_its_periods() -> None:
    pages = dict(markdown_pages.of_stories())
    text = pages["trainer_loss.md"]
    assert "[`trainer_gas_twice`](../../scenarios/transformers/trainer_gas_twice/README.md)" in text
    assert "5.2.0 to 5.5.3; 5.5.4 is not affected" in text
