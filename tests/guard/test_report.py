"""The report of a training as text, also if what it contains is hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]
HOSTILE = "</title><script>alert(1)</script>\x1b[2J\n::error::\"'&{{ 7 * 7 }}"


def fault(**facts: Any) -> dict[str, Any]:
    usual = {
        "check": "replicas",
        "kind": "differ",
        "text": "the copies of a and 1 more parameter are not equal",
        "ranks": [1],
        "size": 0.5,
        "parameters": ["a", "b"],
        "step": 3,
        "optimizer": 0,
        "times": 1,
        "last_step": 3,
        "bugs": [],
    }
    return {**usual, **facts}


def bug(**facts: Any) -> dict[str, Any]:
    usual = {"name": "my_bug", "title": "All is wrong", "remedy": "use b 2", "certain": True}
    return {**usual, **facts}


def write(folder: Path, *faults: dict[str, Any], **facts: Any) -> Path:
    """A report with these faults in a folder."""
    usual = {
        "steps": 40,
        "checked": [1, 2, 3, 20, 40],
        "cost_percent": 0.91,
        "check_ms": 12.34,
        "faults": list(faults),
        "not_seen": [],
        "notes": [],
        "error": "",
        "known_bugs": [],
    }
    (folder / "summary.json").write_text(json.dumps({**usual, **facts}))
    lines = "".join(json.dumps(one) + "\n" for one in faults)
    (folder / "alarms.jsonl").write_text(lines)
    return folder


def printed(capsys: Capture, *words: str | Path) -> list[str]:
    assert main(["guard-report", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_summary_is_printed_again(tmp_path: Path, capsys: Capture) -> None:
    write(
        tmp_path,
        fault(times=4, last_step=40, bugs=["x", "y"]),
        fault(check="samples", kind="shared", text="rows were read twice", ranks=[0, 1], step=1),
        not_seen=["gradients of 2 of 5 parameters are not compared: sharded on dimension 1"],
        notes=["check 6 was not judged: no post of rank 1"],
        known_bugs=[bug(), bug(name="perhaps", certain=False)],
    )
    assert printed(capsys, tmp_path) == [
        "40 steps, 5 checked; cost 0.91 % of the time (12.3 ms a check); 2 faults",
        "KNOWN BUG my_bug: All is wrong; use b 2",
        "ALARM: step 1, ranks 0, 1: samples: rows were read twice",
        "ALARM: step 3, rank 1: replicas: the copies of a and 1 more parameter are not equal "
        "(4 times, until step 40) (perhaps the bug x, y)",
        "not seen: gradients of 2 of 5 parameters are not compared: sharded on dimension 1",
        "note: check 6 was not judged: no post of rank 1",
    ]


def test_the_report_of_a_killed_training_has_its_alarms(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, fault())
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "alarms.jsonl").open("a") as file:
        file.write('{"check": "repl')  # it was killed while it wrote
    text, alarm = printed(capsys, tmp_path)
    assert text == "no summary: the training was killed before its first check, or runs still"
    assert alarm.startswith("ALARM: step 3, rank 1: replicas: ")


def test_a_summary_of_a_training_that_was_killed_says_when_it_was_written(
    tmp_path: Path, capsys: Capture
) -> None:
    time = "2026-11-27T01:02:03Z"
    write(tmp_path, fault(), ended=False, run="a", time=time, checks=5000)
    with (tmp_path / "alarms.jsonl").open("a") as file:
        file.write(json.dumps(fault(run="a", kind="later", text="the last words")) + "\n")
        file.write(json.dumps(fault(run="b", kind="of another training")) + "\n")
    heading, _, ending = printed(capsys, tmp_path)
    assert heading == (
        "40 steps, 5000 checked; cost 0.91 % of the time (12.3 ms a check); 2 faults; the training "
        "was killed, or runs still: this was written at 2026-11-27T01:02:03Z"
    )
    assert ending == "ALARM: step 3, rank 1: replicas: the last words"


def test_earlier_trainings_in_the_folder_are_named(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, fault(), steps=7)
    (tmp_path / "summary.json").rename(tmp_path / "summary-1.json")
    write(tmp_path)
    earlier, latest = printed(capsys, tmp_path)
    assert earlier.startswith("earlier, in summary-1.json: 7 steps, 5 checked; ")
    assert earlier.endswith("; 1 fault")
    assert latest.startswith("40 steps, 5 checked; ")


@pytest.mark.parametrize(
    "faults",
    [
        *({field: HOSTILE} for field in ("check", "kind", "text")),
        *({field: [HOSTILE]} for field in ("parameters", "bugs", "ranks")),
    ],
)
@pytest.mark.parametrize(
    "facts",
    [
        {"error": HOSTILE, "not_seen": [HOSTILE], "notes": [HOSTILE]},
        {"known_bugs": [bug(name=HOSTILE, title=HOSTILE, remedy=HOSTILE)]},
    ],
)
def test_hostile_texts_stay_text(
    faults: dict[str, Any], facts: dict[str, Any], tmp_path: Path, capsys: Capture
) -> None:
    write(tmp_path, fault(**faults), **facts)
    assert not any("\x1b" in line or line.startswith("::") for line in printed(capsys, tmp_path))


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [
        (None, 2, "has no summary.json and no alarms.jsonl: name the folder of guard --out"),
        ("{", 3, "summary.json is damaged"),
        ("[]", 3, "summary.json is damaged"),
        ("[" * 100_000, 3, "summary.json is damaged"),
        ('{"steps": 1e999}', 3, "summary.json is damaged"),
        ('{"faults": [{}]}', 3, "summary.json is damaged"),
        ("{}", 3, "summary.json is damaged: it has no 'steps'"),
    ],
)
def test_what_is_no_report_is_one_line(
    content: str | None, code: int, part: str, tmp_path: Path, capsys: Capture
) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    assert part in refused(capsys, ["guard-report", str(tmp_path)], code)


def test_a_folder_that_is_not_there_or_not_named_is_a_mistake(capsys: Capture) -> None:
    part = "no folder /nowhere: name the folder of guard --out"
    assert part in refused(capsys, ["guard-report", "/nowhere"], 2)
    assert main(["guard-report"]) == 2
    assert "arguments are required: FOLDER" in capsys.readouterr().err
