"""The history: what is kept is there again, whatever happens to who writes it."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import Inconclusive, UserError
from harness.results import RunResult
from harness.spec import Verdict
from harness.sweep.history import History, reading, writing
from harness.sweep.history_rows import Change, Kind, Nightly, ReleaseResult, newest
from tests.another_user import as_nobody, needs_root
from tests.nightly_world import NO, SCENARIO, UNCLEAR, YES, asked, cell, release

AT = "2024-03-04T02:00:00Z"


def begun(history: History, day: str = "2024-03-04", kind: Kind = Kind.NIGHTLY) -> Nightly:
    return history.start(kind, day, AT, {"cpus": 2})


def made(file: Path) -> Path:
    with writing(file) as history:
        night = begun(history)
        history.add_releases([release("0.13.2", "2024-02-12"), release("0.13.3", "2024-02-23")])
        history.add_results([ReleaseResult(night.id, "deepspeed", "0.13.2", cell("0.13.2", YES))])
        result = RunResult(SCENARIO, Verdict.REPRODUCED, (), ())
        history.add_verdict(night, result, 2.5, Path("runs/one"))
        history.set_changes(
            night,
            [
                Change(
                    "now affected",
                    SCENARIO,
                    "deepspeed",
                    "0.13.2",
                    "not affected",
                    "affected",
                    "it has it",
                )
            ],
        )
        history.finish(night, "2024-03-04T02:10:00Z")
    return file


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    with reading(made(tmp_path / "h.sqlite")) as history:
        (night,) = history.nightlies()
        assert (night.kind, night.day, night.ended) == (
            Kind.NIGHTLY,
            "2024-03-04",
            "2024-03-04T02:10:00Z",
        )
        assert night.facts == {"cpus": 2}
        assert [r.version for r in history.releases("deepspeed")] == ["0.13.2", "0.13.3"]
        assert history.releases("transformers") == []
        (answer,) = history.results()
        assert (answer.package, answer.version, answer.cell) == (
            "deepspeed",
            "0.13.2",
            cell("0.13.2", YES),
        )
        (own,) = history.verdicts(night.id, SCENARIO)
        assert (own.verdict, own.seconds, own.run) == ("reproduced", 2.5, "runs/one")
        assert own.result["exit_code"] == 0
        assert [(n, c.kind, c.message) for n, c in history.changes()] == [
            (night.id, "now affected", "it has it")
        ]


def test_what_is_kept_again_takes_the_place_of_the_old(tmp_path: Path) -> None:
    with writing(tmp_path / "h.sqlite") as history:
        night = begun(history)
        for answer in (UNCLEAR, NO):
            history.add_results(
                [ReleaseResult(night.id, "deepspeed", "0.13.2", cell("0.13.2", answer))]
            )
        for yanked in (False, True):
            history.add_releases([release("0.13.2", "2024-02-12", yanked)])
        for kind in ("yanked", "answers again"):
            history.set_changes(night, [Change(kind, SCENARIO, None, None, None, "x", "y")])
        assert [a.cell.status for a in history.results()] == [NO]
        assert [r.yanked for r in history.releases()] == [True]
        assert [c.kind for _, c in history.changes()] == ["answers again"]


def test_known_is_the_newest_certain_answer_else_the_newest() -> None:
    told = [
        asked("1", YES, 1),
        asked("1", UNCLEAR, 2),
        asked("2", UNCLEAR, 1),
        asked("2", NO, 2),
        asked("3", UNCLEAR, 1),
        asked("3", UNCLEAR, 3),
    ]
    found = {key[2]: (one.nightly, one.cell.status) for key, one in newest(told).items()}
    assert found == {"1": (1, YES), "2": (2, NO), "3": (3, UNCLEAR)}


def test_a_night_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    with writing(file) as history:
        first = begun(history)
        history.add_results([ReleaseResult(first.id, "deepspeed", "0.13.2", cell("0.13.2", YES))])
    with writing(file) as history:
        second = history.start(Kind.NIGHTLY, "2024-03-05", AT, {"cpus": 4})
        assert (second.id, second.day, second.facts) == (first.id, "2024-03-05", {"cpus": 4})
        history.finish(second, AT)
        assert begun(history, "2024-03-05").id != first.id
        assert len(history.results(first.id)) == 1


def test_kinds_of_nights_are_counted_apart(tmp_path: Path) -> None:
    with writing(tmp_path / "h.sqlite") as history:
        recorded = begun(history, "2026-01-01", Kind.RECORDED)
        assert begun(history, "2024-03-04").id != recorded.id


WRITER = """
import sys, time
from pathlib import Path
from harness.sweep.history import writing
from harness.sweep.history_rows import Kind, ReleaseResult
from tests.nightly_world import YES, cell
with writing(Path(sys.argv[1])) as history:
    night = history.start(Kind.NIGHTLY, "2024-03-04", "2024-03-04T02:00:00Z", {})
    for number in range(100_000):
        result = ReleaseResult(night.id, "deepspeed", f"0.{number}", cell(f"0.{number}", YES))
        history.add_results([result])
        print(number, flush=True)
        time.sleep(0.002)  # between two transactions a reader has its turn
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


def test_what_a_killed_writer_left_half_done_is_undone_by_who_reads(tmp_path: Path) -> None:
    file = made(tmp_path / "h.sqlite")
    half = (
        "import sqlite3, sys, os, signal\nd = sqlite3.connect(sys.argv[1])\n"
        "d.execute('pragma cache_size = 1')\nd.execute('begin immediate')\n"
        "d.executemany('insert into release values (?, ?, ?, 0)', "
        "[('p' * 500, str(n), '2024') for n in range(200)])\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", half, str(file)], check=False)
    assert (tmp_path / "h.sqlite-journal").stat().st_size
    with reading(file) as history:
        assert len(history.releases()) == 2


def test_a_writer_that_is_killed_loses_nothing_that_it_was_told(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    for go in range(2):
        with writer(file) as process:
            read_until(process, 20)
            os.kill(process.pid, signal.SIGKILL)
            told = process.stdout.read().split() if process.stdout else []
        with reading(file) as history:
            assert len(history.results()) > 20
        with writing(file) as history:
            (night,) = history.nightlies()  # the next one goes on with the same
            assert night.ended is None
            kept = {one.version for one in history.results(night.id)}
            assert {f"0.{n}" for n in range(21)} | {f"0.{n}" for n in told} <= kept, go


def test_two_writers_at_once_are_one_too_many_and_readers_are_welcome(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    with writer(file) as process:
        try:
            read_until(process, 0)
            with pytest.raises(Inconclusive, match="another command is writing to"), writing(file):
                raise AssertionError("both write")
            with reading(file) as history:
                assert history.nightlies()
                before = len(history.results())
                read_until(process, before + 5)
                assert len(history.results()) > before
        finally:
            process.kill()


def test_a_history_of_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    file = made(tmp_path / "h.sqlite")
    db = sqlite3.connect(file)
    db.execute("pragma user_version = 2")
    db.commit()
    db.close()
    before = file.read_bytes()
    for opened in (reading, writing):
        with (
            pytest.raises(UserError, match="has schema 2; this harness reads up to 1"),
            opened(file),
        ):
            pass
    assert file.read_bytes() == before


@pytest.mark.parametrize("left", [0.3, 0.5, 0.9])
def test_a_history_that_is_cut_off_is_damaged(tmp_path: Path, left: float) -> None:
    file = made(tmp_path / "h.sqlite")
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * left)])
    for opened in (reading, writing):
        with (
            pytest.raises(Inconclusive, match=r"h\.sqlite is damaged .*restore a copy"),
            opened(file) as history,
        ):
            history.nightlies(), history.results(), history.verdicts(), history.changes()


def used(file: Path) -> None:
    """What a night does with a history, and the site."""
    with reading(file) as history:
        history.nightlies(), history.releases(), history.results(), history.verdicts()
        history.changes(), history.known(SCENARIO)
    with writing(file) as history:
        history.finish(begun(history), AT)


def spoilt(number: int, file: Path) -> None:
    """Damage a file at random, as the number says."""
    chance, content = random.Random(number), bytearray(file.read_bytes())
    match number % 4:
        case 0:
            del content[chance.randrange(1, len(content)) :]
        case 1:
            for _ in range(chance.choice((1, 5, 50, 500))):
                content[chance.randrange(len(content))] = chance.randrange(256)
        case 2:
            page = chance.randrange(len(content) // 4096) * 4096
            content[page : page + 4096] = chance.randbytes(4096)
        case _:
            pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
            chance.shuffle(pages)
            content = bytearray(b"".join(pages))
    file.write_bytes(content)


def test_a_history_that_is_damaged_at_random_says_so_on_one_line(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole.sqlite").read_bytes()
    told = []
    for number in range(80):
        file = tmp_path / f"{number}.sqlite"
        file.write_bytes(whole)
        spoilt(number, file)
        try:
            used(file)
        except Inconclusive as error:
            told.append(str(error))
        except Exception as error:
            raise AssertionError(f"number {number}: {error!r}") from error
    assert len(told) > 40
    assert all(f"{tmp_path}" in line and "\n" not in line for line in told)


@pytest.mark.parametrize(
    "statement",
    [
        "drop table answer",
        "drop table verdict",
        "alter table release drop column yanked",
        "alter table night rename column facts to truths",
        "update night set facts='{'",
        "update night set facts='[]'",
        "update night set facts=x'ff00'",
        "update night set day='yesterday'",
        "update night set day=5",
        "update night set started=x'00'",
        "update night set ended=x'80'",
        "update release set version='no version' where version='0.13.2'",
        "update release set day=20240212",
        "update release set yanked='perhaps'",
        "update answer set cell='null'",
        "update answer set cell='" + "[" * 100_000 + "'",
        "update answer set cell=replace(cell, 'affected', 'perhaps')",
        "update answer set version='1.x'",
        "update answer set night=99",
        "update answer set night='first'",
        "update verdict set verdict='perhaps'",
        "update verdict set seconds='long'",
        "update verdict set result='{}'",
        "update verdict set result='[]'",
        "update verdict set result=replace(result, '[]', '[5]')",
        "update verdict set run=x'00'",
        "update verdict set night=99",
        "update change set told=x'00ff'",
        "update change set package=x'00'",
        "update change set night=99",
        "pragma application_id = 5",
    ],
    ids=lambda statement: statement[:60],
)
def test_a_history_that_holds_what_no_night_wrote_is_damaged(
    tmp_path: Path, statement: str
) -> None:
    file = made(tmp_path / "h.sqlite")
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("pragma foreign_keys = off")
    db.execute(statement)
    db.close()
    before = file.read_bytes()
    for opened in (reading, writing):
        with pytest.raises(Inconclusive) as caught, opened(file):
            pass
        assert str(caught.value).startswith(f"{file} is damaged (")
        assert str(caught.value).endswith("): restore a copy of it")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < len(str(file)) + 600
    assert file.read_bytes() == before


def test_a_text_in_the_place_of_a_history_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "h.sqlite"
    for content in ("no database at all, " * 100, "\n", "x"):
        file.write_text(content)
        for opened in (reading, writing):
            with (
                pytest.raises(
                    Inconclusive, match=r"is damaged .* or not a history: restore a copy"
                ),
                opened(file),
            ):
                pass
        assert file.read_text() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "another.sqlite"
    db = sqlite3.connect(file)
    db.execute("create table mine (a)")
    db.commit()
    db.close()
    before = file.read_bytes()
    for opened in (reading, writing):
        with pytest.raises(UserError, match="is not a history: name another"), opened(file):
            pass
    assert file.read_bytes() == before


def test_no_history_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="create one with python -m harness watch"),
        reading(tmp_path / "h.sqlite"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"no folder .*nowhere for h\.sqlite"),
        writing(tmp_path / "nowhere" / "h.sqlite"),
    ):
        pass


def test_an_empty_file_becomes_a_history(tmp_path: Path) -> None:
    (tmp_path / "h.sqlite").touch()
    with writing(tmp_path / "h.sqlite") as history:
        assert history.nightlies() == []


@needs_root
def test_in_a_folder_that_cannot_be_written_to_a_history_can_be_read(shared: Path) -> None:
    file = made(shared / "h.sqlite")
    file.chmod(0o644)
    (shared / ".h.sqlite.lock").unlink()

    def look() -> Iterator[tuple[int, str]]:
        with reading(file) as history:
            nights = len(history.nightlies())
        try:
            with writing(file):
                yield nights, "written"
        except Inconclusive as error:
            yield nights, str(error)

    with as_nobody(look) as (nights, told):
        assert nights == 1
        assert "cannot write" in told
        assert "name another --history" in told
