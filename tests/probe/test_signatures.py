"""What probe shows of the catalogue's bugs: the recorded files, and the table made from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.bugs import catalog
from harness.cli import signatures as command
from harness.run.server_pool import Pool
from harness.system.errors import UserError
from harness.training.probe import signatures
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import MISTAKES, Broken, meaning, term
from harness.training.probe.layouts import ACCUMULATION, RANKS, Layout
from harness.training.probe.prober import USUAL, Loop, Prober
from harness.training.probe.signatures import ProbeResult, Sign, Signature
from tests.overlays import lent

KNOWN = [
    (name, found) for name in catalog.sound() if (found := signatures.read(catalog.folder(name)))
]


def answers() -> Answers:
    """A gradient that is 3 times too large with 3 micro-batches."""
    twice = Broken("gradient", "3 times", 3.0, "never divided by the accumulation steps")
    layout = Layout("3 micro-batches", ACCUMULATION, 1, 3)
    wrong_layout = Compared(layout, step=1, broken=[twice, Broken("update", "")])
    right_layout = Compared(Layout("2 ranks", RANKS, 2), notes=["row 17 of 36 came late"])
    return Answers(
        "", [right_layout, wrong_layout], notes=["the learning rate falls from 0.1 to 1e-05"]
    )


def recorded(*signs: Sign) -> ProbeResult:
    return ProbeResult({"package": "1.0"}, "2.13.0", "2026-11-22", {"ranks": "broken"}, signs)


@pytest.mark.parametrize("name", [name for name in MISTAKES if name != "0"])
@pytest.mark.parametrize(("world", "k"), [(2, 3), (4, 2), (2, 4)])
def test_a_ratio_has_a_term_in_ranks_and_micro_batches(name: str, world: int, k: int) -> None:
    words, value = MISTAKES[name]
    symbol = term(value(world, k), world, k)
    assert MISTAKES[symbol][1](world, k) == value(world, k)  # 4 ranks divided by 2 are 2 as well
    assert meaning(value(world, k), world, k) == MISTAKES[symbol][0]
    assert words


@pytest.mark.parametrize("ratio", [1.0, 0.9, 2.5, 1.001])
def test_another_ratio_has_none(ratio: float) -> None:
    assert term(ratio, 2, 3) == meaning(ratio, 2, 3) == ""


def test_what_breaks_first_is_shown_in_terms_of_ranks_and_micro_batches() -> None:
    late, gradient, falls = signatures.signs_of(answers())
    assert gradient == Sign(ACCUMULATION, "gradient", 3.0, "k", 1)
    assert late.kind == (RANKS, "row # of # came late", "")
    assert falls.relation == "the learning rate falls from # to #"
    assert [sign.is_news for sign in (late, gradient, falls)] == [False, True, True]


def test_a_signature_is_what_the_release_without_the_bug_does_not_show() -> None:
    common = Sign("ranks", "samples")
    symptom = Sign("both", "gradient", 0.3333, "1/k", 1)
    usual = Sign("", "dropout draws the same numbers", note=True)
    signature = Signature(
        recorded={"buggy": recorded(common, symptom, usual), "fixed": recorded(common)}
    )
    assert signature.signs == [symptom]
    assert signature.false_alarms == [common]


def test_a_layout_is_silent_unless_the_bug_breaks_its_samples_and_the_fix_has_others() -> None:
    rows = replace(recorded(Sign("ranks", "samples")), statuses={"ranks": "broken"})
    none = replace(recorded(), statuses={"ranks": "no answer", "both": "as the reference"})
    assert Signature(recorded={"buggy": rows, "fixed": none}).silent == {}
    assert Signature(recorded={"buggy": none, "fixed": none}).silent == {
        "buggy": ["ranks"],
        "fixed": ["ranks"],
    }


def test_a_wrong_relation_of_the_model_is_a_finding_and_names_a_bug_only_if_it_was_asked() -> None:
    answers = Answers("", relations={"packing": ["wrong", "off"], "padding_left": ["right", ""]})
    assert signatures.signs_of(answers) == (Sign(signatures.MODEL, "packing"),)
    signs, releases = [Sign(signatures.MODEL, "packing")], {"transformers": "5.23.0"}
    for layouts, names in (({signatures.MODEL}, ["packed_with_cache"]), ({"ranks"}, [])):
        bugs = signatures.with_signature(
            signs,
            layouts,
            releases,
            lambda *_: "tested",
            set(catalog.scenario("packed_with_cache").files),
        )
        assert [bug.name for bug in bugs] == names


def test_what_is_written_is_read_again_and_the_loop_stays(tmp_path: Path) -> None:
    loop = {"script": "ddp.py", "arguments": "--clip 1", "layouts": ["ranks"], "at": 3}
    (tmp_path / signatures.FILE).write_text(json.dumps({"loop": loop}))
    recordings = {"buggy": recorded(Sign("ranks", "loss", 2.0, "ranks", 1)), "fixed": recorded()}
    signatures.write(tmp_path, recordings)
    again = signatures.read(tmp_path)
    assert again is not None
    assert again.loop is not None
    assert {key: value for key, value in asdict(again.loop).items() if key in loop} == {
        **loop,
        "layouts": ("ranks",),
    }
    assert again.recorded == recordings


@pytest.mark.parametrize(("name", "signature"), KNOWN, ids=[name for name, _ in KNOWN])
def test_the_recorded_signatures_are_complete(name: str, signature: Signature) -> None:
    if signature.loop is None:
        assert signature.why
        return
    assert signature.loop.script in USUAL
    assert set(signature.recorded) == {"buggy", "fixed"}
    of = catalog.scenario(name)
    for variant, recording in signature.recorded.items():
        assert of.pins_of(variant).items() <= recording.pins.items()
    assert not signature.silent
    assert signature.signs or signature.why


def test_no_release_without_its_bug_has_a_broken_relation() -> None:
    assert not [name for name, signature in KNOWN if signature.false_alarms]


def test_nine_of_ten_bugs_that_have_a_loop_are_found() -> None:
    with_loop = [signature for _, signature in KNOWN if signature.loop]
    assert len([one for one in with_loop if one.signs]) >= 0.9 * len(with_loop)


def test_a_loop_of_kernels_is_not_probed_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Signature(Loop("fla_layers.py", on_gpus=2))
    monkeypatch.setattr(signatures, "read", lambda folder: kernels)
    monkeypatch.setattr(command, "why_no_gpus", lambda ranks: f"{ranks} ranks need 1 GPU")
    assert command._loops([]) == []
    with pytest.raises(UserError, match="fla_gate_linear: 2 ranks need 1 GPU"):
        command._loops(["fla_gate_linear"])


def with_signs() -> Iterator[Any]:
    """The signature of each bug. Each day CI tests some of the first ones of all packages."""
    packages: set[str] = set()
    for name in catalog.sound():
        signature = signatures.read(catalog.folder(name))
        if signature and signature.loop and signature.signs and not signature.loop.on_gpus:
            subject = catalog.scenario(name).subject
            marks = pytest.mark.exhaustive if subject in packages else pytest.mark.by_day(12)
            packages.add(subject)
            yield pytest.param(name, signature, id=name, marks=marks)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(("name", "signature"), list(with_signs()))
def test_the_bug_is_found_as_it_was_recorded(name: str, signature: Signature, pool: Pool) -> None:
    assert signature.loop is not None
    with lent(name, "buggy") as overlays:
        answers = Prober(pool, overlays["buggy"].site)(signature.loop)
    kinds = {sign.kind for sign in signatures.signs_of(answers)}
    assert {sign.kind for sign in signature.signs} <= kinds
