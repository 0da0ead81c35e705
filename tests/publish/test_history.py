"""The history: what was stored can be read again, whatever happens to its writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bugs.api.spec import Verdict
from harness.bugs.results import RunResult
from harness.publish.history import Change, reading, writing
from harness.run.suite import Done
from harness.system.errors import Inconclusive, UserError
from tests.another_user import as_nobody, needs_root
from tests.nightly_world import NO, PACKAGE, SCENARIO, UNCLEAR, YES, release, result

AT, ENDED = "2024-03-04T02:00:00Z", "2024-03-04T02:10:00Z"


def write_history(file: Path) -> Path:
    with writing(file) as history:
        history.start("2024-03-04", AT, {"cpus": 2})
        history.add_releases([release("0.13.2", "2024-02-12"), release("0.13.3", "2024-02-23")])
        history.add_result(result("0.13.2", YES))
        verdict = RunResult(SCENARIO, Verdict.REPRODUCED, (), ())
        history.add_verdict(Done(verdict, 2.5, Path("runs/one")))
        about = (SCENARIO, PACKAGE, "0.13.2", str(NO), str(YES))
        history.set_changes([Change("now affected", *about, "it is affected")])
        history.add_confirmation(SCENARIO, "{}")
        history.finish(ENDED)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_history(tmp_path / "h.jsonl")


def check_refused(file: Path, error: type[Exception], message: str) -> None:
    """Neither a reader nor a writer may open this file or change it."""
    before, beside = file.read_bytes(), set(file.parent.iterdir())
    with pytest.raises(error, match=message) as caught:
        reading(file)
    with pytest.raises(error, match=message), writing(file):
        raise AssertionError("a damaged history was opened")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 600
    assert file.read_bytes() == before
    assert set(file.parent.iterdir()) == beside


def test_what_was_stored_can_be_read_again(file: Path) -> None:
    history = reading(file)
    (night,) = history.nightlies
    assert (night.day, night.ended, night.facts) == ("2024-03-04", ENDED, {"cpus": 2})
    assert [version for _, version in history.releases] == ["0.13.2", "0.13.3"]
    assert night.results == [result("0.13.2", YES)]
    done = night.ours[SCENARIO]
    assert (done.result.verdict, done.seconds) == (Verdict.REPRODUCED, 2.5)
    assert done.folder == Path("runs/one")
    assert [(change.kind, change.message) for change in night.changes] == [
        ("now affected", "it is affected")
    ]
    assert night.confirmed == {(SCENARIO, "{}")}


def test_newer_entries_replace_older_ones(tmp_path: Path) -> None:
    with writing(tmp_path / "h.jsonl") as history:
        history.start("2024-03-04", AT, {})
        for status in (UNCLEAR, NO):
            history.add_result(result("0.13.2", status))
        for yanked in (False, True):
            history.add_releases([release("0.13.2", "2024-02-12", yanked)])
        for kind in ("yanked", "certain again"):
            history.set_changes([Change(kind, SCENARIO, None, None, None, "x", "y")])
    for opened in (history, reading(tmp_path / "h.jsonl")):
        assert [each.cell.status for each in opened.results()] == [NO]
        assert [r.yanked for r in opened.releases.values()] == [True]
        assert [c.kind for c in opened.newest.changes] == ["certain again"]


def test_a_nightly_that_was_killed_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    with writing(file) as history:
        history.start("2024-03-04", AT, {"cpus": 2})
        history.add_result(result("0.13.2", YES))
    with writing(file) as history:
        history.start("2024-03-05", AT, {"cpus": 4})
        (night,) = history.nightlies
        assert (night.day, night.facts) == ("2024-03-05", {"cpus": 4})
        assert len(night.results) == 1
        history.finish(AT)
        history.start("2024-03-05", AT, {})
        assert [len(each.results) for each in history.nightlies] == [1, 0]


WRITER = """
import sys, time
from pathlib import Path
from harness.publish.history import writing
from tests.nightly_world import YES, result
with writing(Path(sys.argv[1])) as history:
    history.start("2024-03-04", "2024-03-04T02:00:00Z", {})
    for number in range(100_000):
        history.add_result(result(f"0.{number}", YES))
        print(number, flush=True)
        time.sleep(0.002)
"""


def writer(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= number:
            return
    raise AssertionError("the writer ended early")


def test_a_killed_writer_loses_nothing_that_it_stored(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    for attempt in range(2):
        with writer(file) as process:
            read_until(process, 20)
            os.kill(process.pid, signal.SIGKILL)
            printed = process.stdout.read().split() if process.stdout else []
        with writing(file) as history:
            (night,) = history.nightlies  # the next writer continues it
            assert night.ended is None
            stored = {one.version for one in night.results}
            assert {f"0.{n}" for n in [*range(21), *printed]} <= stored, attempt


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    with writer(file) as process:
        try:
            read_until(process, 0)
            with pytest.raises(Inconclusive, match="another command is writing to"), writing(file):
                raise AssertionError("both write")
            before = len(reading(file).results())
            read_until(process, before + 5)
            assert len(reading(file).results()) > before
        finally:
            process.kill()


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_history_that_lost_its_end_keeps_its_whole_lines(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    assert reading(file).newest.ended is None
    with writing(file) as history:
        history.start("2024-03-04", AT, {})
        history.finish(ENDED)
    assert [one.ended for one in reading(file).nightlies] == [ENDED]


def test_what_has_not_changed_is_not_written_again(file: Path) -> None:
    size = file.stat().st_size
    with writing(file) as history:
        history.add_releases([release("0.13.2", "2024-02-12"), release("0.13.3", "2024-02-23")])
    assert file.stat().st_size == size


@pytest.mark.parametrize(
    "line",
    [
        '{"result": {"package": 7}}',
        '{"changes": [7]}',
        '{"night": {}}',
        '{"nightly": {"day": "2024-03-04"}}',
        '{"release": 3}',
        "[]",
        "{",
    ],
)
def test_a_line_that_no_nightly_wrote_is_damage(file: Path, line: str) -> None:
    file.write_bytes(file.read_bytes() + line.encode() + b"\n")
    check_refused(file, UserError, r"h\.jsonl is damaged .*restore a copy")


@pytest.mark.parametrize("content", ["no history at all\n" * 100, "\n", "SQLite format 3\0\n", "x"])
def test_another_file_is_not_a_history_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "h.jsonl").write_text(content)
    message = r"is damaged .* or not a history: restore a copy"
    check_refused(tmp_path / "h.jsonl", UserError, message)


def test_a_missing_history_names_the_command_that_creates_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="create one with python -m harness watch"):
        reading(tmp_path / "h.jsonl")
    assert not list(tmp_path.iterdir())
    (tmp_path / "h.jsonl").touch()
    with writing(tmp_path / "h.jsonl") as history:
        assert history.nightlies == []


@needs_root
def test_a_history_in_a_read_only_folder_can_be_read(shared: Path) -> None:
    file = write_history(shared / "h.jsonl")
    file.chmod(0o644)
    (shared / ".h.jsonl.lock").unlink()

    def look() -> Iterator[tuple[int, str]]:
        nights = len(reading(file).nightlies)
        try:
            with writing(file):
                yield nights, "written"
        except Inconclusive as error:
            yield nights, str(error)

    with as_nobody(look) as (nights, message):
        assert nights == 1
        assert "cannot write" in message
        assert "name another --history" in message
