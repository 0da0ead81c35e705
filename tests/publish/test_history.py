"""The history: what was stored can be read again, whatever happens to its writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bugs.api.spec import Verdict
from harness.bugs.results import RunResult
from harness.publish.history import Change, Nightly, reading, writing
from harness.run.suite import Done
from harness.system.errors import Inconclusive, UserError
from tests.another_user import as_nobody, needs_root
from tests.nightly_world import NO, PACKAGE, SCENARIO, YES, release, result

AT, ENDED = "2024-03-04T02:00:00Z", "2024-03-04T02:10:00Z"


def a_nightly() -> Nightly:
    night = Nightly("2024-03-04", AT, {"cpus": 2}, ENDED)
    night.releases = [release("0.13.2", "2024-02-12"), release("0.13.3", "2024-02-23")]
    night.add_result(result("0.13.2", YES))
    verdict = RunResult(SCENARIO, Verdict.REPRODUCED, (), (result("0.13.2", YES).cell,))
    night.ours[SCENARIO] = Done(verdict, 2.5, Path("runs/one"))
    about = (SCENARIO, PACKAGE, "0.13.2", str(NO), str(YES))
    night.changes.append(Change("now affected", *about, "it is affected"))
    return night


def write_history(file: Path) -> Path:
    with writing(file) as history:
        history.append(a_nightly())
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_history(tmp_path / "h.jsonl")


def check_refused(file: Path) -> None:
    """Neither a reader nor a writer may open this file or change it."""
    before, beside = file.read_bytes(), set(file.parent.iterdir())
    message = r"h\.jsonl is damaged .* or not a history: restore a copy"
    with pytest.raises(UserError, match=message) as caught:
        reading(file)
    with pytest.raises(UserError, match=message), writing(file):
        raise AssertionError("a damaged history was opened")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(file)) + 600
    assert file.read_bytes() == before
    assert set(file.parent.iterdir()) == beside


def test_what_was_stored_can_be_read_again(file: Path) -> None:
    history = reading(file)
    assert history.nightlies == [a_nightly()]
    assert [version for _, version in history.releases] == ["0.13.2", "0.13.3"]


def test_only_news_of_releases_are_kept(file: Path) -> None:
    history = reading(file)
    yanked = release("0.13.2", "2024-02-12", yanked=True)
    assert history.news([yanked, release("0.13.3", "2024-02-23")]) == [yanked]
    assert [r.yanked for r in history.releases.values()] == [True, False]


def test_a_second_writer_is_refused_and_readers_are_not(file: Path) -> None:
    with writing(file) as history:
        with pytest.raises(Inconclusive, match="another command is writing to"), writing(file):
            raise AssertionError("both write")
        history.append(a_nightly())
        assert len(reading(file).nightlies) == 2


def test_a_history_that_lost_its_end_keeps_its_whole_lines(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content + content[:-20])
    assert len(reading(file).nightlies) == 1
    write_history(file)
    assert file.read_bytes() == 2 * content


@pytest.mark.parametrize("line", ['{"nightly": {}}', '{"day": "2024-03-04"}', "7", "[]", "{"])
def test_a_line_that_no_nightly_wrote_is_damage(file: Path, line: str) -> None:
    file.write_bytes(file.read_bytes() + line.encode() + b"\n")
    check_refused(file)


@pytest.mark.parametrize("content", ["no history at all\n" * 100, "\n", "SQLite format 3\0\n", "x"])
def test_another_file_is_not_a_history_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "h.jsonl").write_text(content)
    check_refused(tmp_path / "h.jsonl")


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
