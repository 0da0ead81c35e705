"""Parameters: their bounds are checked, and described in the same words everywhere."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.knobs import Knob, params_class

KNOBS = {
    "lr": Knob(0.1, above=0, about="of SGD"),
    "samples": Knob(64, least=8, multiple=8, unit="rows", about="in the dataset"),
    "share": Knob(0.5, least=0, below=1, about="of the ranks"),
    "power": Knob(12, most=16, about="of two"),
    "seeding": Knob("apart", choices=("apart", "alike"), about="of the ranks"),
    "norm": Knob(False, about="whether there is one"),
}
Params = params_class(KNOBS)


HUGE = 8 * 10**400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "scenario.lr=0.0: must be above 0 and finite"),
        ({"lr": math.nan}, "scenario.lr=nan: must be above 0 and finite"),
        ({"lr": math.inf}, "scenario.lr=inf: must be above 0 and finite"),
        ({"samples": 12}, "scenario.samples=12: must be at least 8 and a multiple of 8"),
        ({"samples": 0}, "scenario.samples=0: must be at least 8 and a multiple of 8"),
        ({"share": 1.0}, "scenario.share=1.0: must be at least 0, below 1 and finite"),
        ({"power": 17}, "scenario.power=17: must be at most 16"),
        ({"samples": HUGE}, f"scenario.samples={HUGE}: must be at least 8 and a multiple of 8"),
        ({"seeding": "both"}, "scenario.seeding=both: choose apart or alike"),
    ],
)
def test_a_value_beyond_its_bounds_is_refused_with_the_bounds(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match="scenario") as caught:
        Params(**settings)
    assert str(caught.value) == message


def test_values_within_their_bounds_are_accepted() -> None:
    Params(lr=1e-9, samples=8, share=0.0, power=16, seeding="alike", norm=True)


def test_a_parameter_is_described_with_its_unit_and_its_bounds() -> None:
    assert {name: knob.meaning for name, knob in KNOBS.items()} == {
        "lr": "of SGD; above 0",
        "samples": "in the dataset; in rows; at least 8; a multiple of 8",
        "share": "of the ranks; at least 0; below 1",
        "power": "of two; at most 16",
        "seeding": "of the ranks; one of apart, alike",
        "norm": "whether there is one",
    }


@pytest.mark.parametrize(
    "words", [["show", "bf16_clip"], ["run", "scenario=bf16_clip", "--help"]], ids=" ".join
)
def test_show_and_help_print_the_knobs(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.show._print_upstream", lambda *_: None)
    with suppress(SystemExit):  # Hydra's --help
        assert main(words) == 0
    lr = catalog.scenario("bf16_clip").knobs["lr"]
    assert f"scenario.lr=1.0  {lr.meaning}" in capfd.readouterr().out
