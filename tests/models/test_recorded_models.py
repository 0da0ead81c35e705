"""The recorded answers for the models of transformers, and since when a feature is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.publish import docs_tables
from harness.rank.models.answer import Answer, AnswerStatus, Row
from harness.training.models import recorded
from harness.training.models.stack import Releases
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]

WRONG, RIGHT = Answer(AnswerStatus.WRONG, "off by 2 %"), Answer(AnswerStatus.RIGHT)
HISTORY: dict[str, dict[str, Answer]] = {
    "4.50.3": {"llama": RIGHT, "gpt2": WRONG},
    "5.0.1": {"llama": WRONG, "gpt2": WRONG},
    "5.3.0": {"llama": WRONG, "gpt2": RIGHT, "falcon": WRONG},
}


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three releases, not recorded in the order of their days."""
    monkeypatch.setattr(recorded, "FILE", tmp_path / "recorded.json.xz")
    recorded.all_recorded.cache_clear()
    for release in ("5.3.0", "4.50.3", "5.0.1"):
        rows = [Row(model, "packing", answer) for model, answer in HISTORY[release].items()]
        recorded.record(rows, Releases(tmp_path, {"transformers": release}))
    yield
    recorded.all_recorded.cache_clear()


def test_each_wrong_feature_says_since_when(history: None) -> None:
    assert [one.release for one in recorded.all_recorded()] == list(HISTORY)
    assert recorded.wrong_since("llama", "packing") == ("5.0.1", "4.50.3")
    assert recorded.wrong_since("falcon", "packing") == ("5.3.0", "")
    lines = {line.model: str(line.cells[0]) for line in docs_tables.model_lines()}
    assert lines == {"llama": "✗ 5.0.1", "gpt2": "✓", "falcon": "✗"}
    assert "| llama | ✗ 5.0.1 |" in docs_tables.models_page()


def test_a_part_that_is_asked_again_leaves_the_rest(history: None, tmp_path: Path) -> None:
    recorded.record([Row("llama", "loss", RIGHT)], Releases(tmp_path, {"transformers": "5.3.0"}))
    (newest,) = recorded.all_recorded()[-1:]
    assert {r: str(a.status) for r, a in newest.answers["llama"].items()} == {
        "packing": "wrong",
        "loss": "right",
    }


def test_a_run_is_compared_with_the_newest_recorded_release_before(history: None) -> None:
    before = recorded.before({"transformers": "5.1.0"}, ["llama"])
    assert before
    assert before.release == "5.0.1"
    rows = [Row("llama", "packing", RIGHT), Row("gpt2", "packing", WRONG)]
    rows += [Row("falcon", "packing", WRONG), Row("gpt2", "loss", RIGHT)]
    changes = recorded.changed(rows, before)
    assert (changes.broken, changes.new, changes.mended) == ((), (rows[2],), (rows[0],))
    older = recorded.before({"transformers": "5.0.0"}, ["llama"])
    assert older
    assert recorded.changed([Row("llama", "packing", WRONG)], older).broken
    assert recorded.before({"transformers": "4.50.3"}, ["llama"]) is None


def test_a_release_that_was_recorded_without_the_models_is_not_compared(heads: Path) -> None:
    packages = {"transformers": "5.4.0"}
    newer = Releases(heads.parent, {"transformers": "5.3.1"})
    recorded.record([Row("bert:masked_lm", "loss", WRONG)], newer)
    assert (nearest := recorded.before(packages, ["llama"]))
    assert nearest.release == "5.3.0"


def test_the_same_transformers_with_another_package_is_compared_too(
    history: None, tmp_path: Path
) -> None:
    packages = {"transformers": "5.3.0", "peft": "0.21.2"}
    assert (nearest := recorded.before(packages, ["llama"]))
    assert nearest.release == "5.3.0"
    recorded.record([Row("llama", "packing", RIGHT)], Releases(tmp_path, packages))
    assert (nearest := recorded.before(packages, ["llama"]))
    assert nearest.release == "5.0.1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("5.2.0", "llama: wrong in transformers 5.0.1: packing; not tested: loss, accumulation"),
        ("4.51.0", "llama: no tested feature is wrong in transformers 4.50.3; not tested: loss"),
    ],
)
def test_check_says_which_features_of_a_model_are_wrong(
    release: str, message: str, history: None, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"transformers=={release}\n")
    main(["check", "-r", str(file), "--model", "llama"])
    assert message in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    main(["check", "-r", str(file), "--model", str(tmp_path / "config.json"), "--json"])
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["model"], model["known"]) == ("llama", True)


@pytest.fixture
def heads(history: None, tmp_path: Path) -> Path:
    """Adds two heads of the newest release; returns its requirements."""
    rows = [Row(f"{name}:masked_lm", "loss", WRONG) for name in ("bert", "gpt2")]
    recorded.record(rows, Releases(tmp_path, {"transformers": "5.3.0"}))
    file = tmp_path / "requirements.txt"
    file.write_text("transformers==5.3.0\n")
    return file


def test_check_finds_all_heads_of_a_model(heads: Path, capsys: Capture) -> None:
    main(["check", "-r", str(heads), "--model", "gpt2", "--model", "bert", "--json"])
    models = json.loads(capsys.readouterr().out)["models"]
    features = {model["model"]: list(model["wrong"]) for model in models}
    assert features == {"gpt2": [], "gpt2:masked_lm": ["loss"], "bert:masked_lm": ["loss"]}
    main(["check", "-r", str(heads), "--model", "gpt2:masked_lm", "--json"])
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["model"] == "gpt2:masked_lm"


def test_heads_of_a_newer_release_leave_the_other_models(heads: Path, tmp_path: Path) -> None:
    newer = Releases(tmp_path, {"transformers": "5.4.0"})
    recorded.record([Row("bert:masked_lm", "loss", WRONG)], newer)
    causal, _, masked = docs_tables.models_page().partition("## `masked_lm`")
    assert "3 causal language models of transformers 5.3.0" in causal
    assert "| llama | ✗ 5.0.1 |" in causal
    assert "1 model of transformers 5.4.0" in masked


def test_check_finds_a_model_in_an_older_release_than_its_heads(
    heads: Path, tmp_path: Path, capsys: Capture
) -> None:
    newer = Releases(tmp_path, {"transformers": "5.4.0"})
    recorded.record([Row("gpt2:masked_lm", "loss", WRONG)], newer)
    heads.write_text("transformers==5.4.0\n")
    main(["check", "-r", str(heads), "--model", "gpt2", "--json"])
    models = json.loads(capsys.readouterr().out)["models"]
    assert [(model["model"], model["release"]) for model in models] == [
        ("gpt2", "5.3.0"),
        ("gpt2:masked_lm", "5.4.0"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--model", "lama"], "did you mean llama"), (["--model", "x.json"], "no file x.json")],
)
def test_an_unknown_model_is_a_mistake(
    words: list[str], message: str, history: None, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("transformers==5.3.0\n")
    assert message in refused(capsys, ["check", "-r", str(file), *words])


def test_what_is_not_a_release_is_not_recorded(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama"}))
    assert "leave patches and own models out" in refused(capsys, ["models", str(file), "--record"])
