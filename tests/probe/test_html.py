"""The page of a probe has the place, and each module with a colour; what a script names is
escaped."""

from __future__ import annotations

from html.parser import HTMLParser

from harness.training.probe.answers import Answers
from harness.training.probe.html_report import page, strip
from harness.training.probe.where.place import Distance, Place, Stage

MODULES = (
    Distance("embed", "Embedding", 0.0, None, 1e-6),
    Distance("<b>", "Attention", 0.5, 2.0, 1e-6),
)
TEXT = "forward of <b> (Attention)"
PLACE = Place(Stage.FORWARD, TEXT, "<b>", "Attention", layout="2 ranks", distances=MODULES)


def test_the_page_has_the_place_and_escapes_it() -> None:
    text = page(Answers("3 steps", script="train.py", where=PLACE), 1.0)
    HTMLParser().feed(text)
    assert "forward of &lt;b&gt; (Attention)" in text
    assert "<b> (" not in text
    assert text.count("<rect") == 4
    assert "http" not in text


def test_a_module_is_coloured_by_its_distance() -> None:
    forward, backward = (strip(MODULES, name, PLACE) for name in ("forward", "backward"))
    assert [box.colour for box in backward] == ["#8886", "#cc2222"]
    assert forward[0].colour == "#2e8c46"
    assert "the place" in forward[1].title


def test_a_page_without_a_place_has_no_picture() -> None:
    assert "<svg" not in page(Answers("3 steps"), 1.0)
