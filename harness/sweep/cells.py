"""Cells: the answer of one release to one scenario, asked by running it as published, and stored.

A cell is a run of the variant ``released``. Its answer is kept in the cache under a digest of all
that it depends on: the overlay, the scenario's parameters, the lane, torch, and our own code. That
stands in the file as well, with a digest of its whole content; both are compared before the answer
is believed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness import catalog, machine
from harness.config import RunConfig
from harness.files import write_whole, writing
from harness.machine import cache_folder
from harness.report import last_lines, terminal
from harness.spec import (
    RELEASED,
    ExitCode,
    Fault,
    HarnessError,
    Lane,
    Outcome,
    RunResult,
    Unsupported,
    UserError,
)
from harness.text import warn_once
from harness.trial.prefetch import ahead
from harness.trial.records import RUN_FILE, Exit, read_json
from harness.trial.run import chosen_pins, run, stack_of
from harness.trial.server_pool import Pool
from harness.upstream import overlay, pins, uv

FORMAT = 4
"""Raised whenever an older cell should not be believed any more."""


AHEAD = 2
"""How many cells after those that run do their imports: these take longer than most trials."""


IN_A_ROW = 3
"""How many releases that fail alike, one after another, make one suspect the machine."""

ALIKE = 80
"""Characters of a reason that are compared."""

FAULTS = re.compile("no network|does not respond|certificate was refused|no room on the disk")
"""Reasons that the next release would give as well."""

Lost = Callable[[int, HarnessError], object]


class Status(str, Enum):
    """Whether a release has the bug."""

    AFFECTED = "affected"
    NOT_AFFECTED = "not affected"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"

    def __str__(self) -> str:
        return self.value

    @property
    def certain(self) -> bool:
        return self in (Status.AFFECTED, Status.NOT_AFFECTED)


STATUSES = {
    Outcome.SYMPTOM: Status.AFFECTED,
    Outcome.CLEAN: Status.NOT_AFFECTED,
    Outcome.INCONCLUSIVE: Status.INCONCLUSIVE,
    Outcome.UNSUPPORTED: Status.UNSUPPORTED,
}


@dataclass(frozen=True)
class Cell:
    """What one run of a scenario on released code said."""

    scenario: str
    pins: Mapping[str, str]
    status: Status
    reason: str
    """The finding, how the trigger was exercised, or why there is no answer."""
    lane: str
    python: str
    torch: str | None
    date: str
    """The day (ISO) it ran."""
    seconds: float = 0.0
    """Wall seconds of the trial."""
    step: int | None = None
    """The first step at which the symptom showed; 0: before the first."""
    run: str | None = None
    """The run folder; None where it came to none."""
    log: tuple[str, ...] = ()
    """Of an inconclusive cell, the end of the first failing rank's log."""
    stored: bool = False
    """Whether it was read from the cache."""

    @property
    def started(self) -> bool:
        """Whether it was run, now or when it was stored: not where it could not be installed."""
        return self.stored or (self.run is not None and self.status is not Status.UNSUPPORTED)

    @property
    def place(self) -> tuple[str, ...]:
        """Where it was asked, as far as it may matter: on another such place it may answer."""
        return _place(self.lane, self.python, self.torch)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(told: Any) -> Cell:
        """A cell that was stored; raises ValueError where a field is missing or odd."""
        if isinstance(told, dict) and "answer" in told:  # the name of status in older histories
            told = {("status" if name == "answer" else name): value for name, value in told.items()}
        if not isinstance(told, dict) or told.keys() != FIELDS.keys():
            raise ValueError("not the fields of a cell")
        for name, holds in FIELDS.items():
            if not holds(told[name]):
                raise ValueError(f"no {name} of a cell: {told[name]!r}")
        return Cell(**{**told, "status": Status(told["status"]), "log": tuple(told["log"])})

    @staticmethod
    def of_fact(scenario: str, fact: Mapping[str, Any]) -> Cell:
        """The cell that a fact of ``affected.json`` was made from, as far as it is kept
        there."""
        told = {name: fact[name] for name in ("reason", "step", "lane", "python", "torch", "date")}
        return Cell(scenario, dict(fact["pins"]), Status(fact["status"]), **told)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_day(value: Any) -> bool:
    return _is_text(value) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "scenario": _is_text,
    "pins": lambda value: type(value) is dict and all(_is_text(v) for v in value.values()),
    "status": lambda value: value in [str(answer) for answer in Status],
    "reason": _is_text,
    "lane": _is_text,
    "python": _is_text,
    "torch": lambda value: value is None or _is_text(value),
    "date": _is_day,
    "seconds": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
    "step": lambda value: value is None or (type(value) is int and value >= 0),
    "run": lambda value: value is None or _is_text(value),
    "log": lambda value: type(value) is list and all(map(_is_text, value)),
    "stored": lambda value: type(value) is bool,
}
"""What a stored cell holds, and of which kind: nothing else is believed."""


class Streak:
    """Releases that fail alike before they start, one after another: what that may mean."""

    def __init__(self) -> None:
        self.last, self.count = "", 0

    def hint(self, cell: Cell) -> str:
        """What to tell after this cell; empty but for the third one that fails alike."""
        # What differs between releases is their numbers, and the paths that they are built in.
        reason = "" if cell.started else re.sub(r"\S*[\d/]\S*", "#", cell.reason)[:ALIKE]
        self.count = self.count + 1 if reason == self.last else 1
        self.last = reason
        if not reason or self.count != IN_A_ROW:
            return ""
        return f"{IN_A_ROW} releases in a row failed alike: {_supposed(cell.reason)}"


def _supposed(reason: str) -> str:
    """What may be the cause where several releases give a reason like this one."""
    if FAULTS.search(reason):
        return (
            "it is this machine or its network; what was answered is stored, so go on once it works"
        )
    if "for Python" in reason:
        python, _ = pins.here()
        return f"they may have no wheels for Python {python}; another Python may do"
    if "could not be installed" in reason:
        return "what builds or fetches them here (a compiler, a proxy) may be the cause"
    return "the reason of one may be that of all"


def answers(
    configs: Sequence[RunConfig],
    *,
    again: bool = False,
    jobs: int | None = None,
    lost: Lost | None = None,
) -> Generator[tuple[int, Cell], None, None]:
    """Ask many releases; yields the place of each in ``configs`` with its cell, as they end.

    ``lost`` is called instead with the place and the error of a release that could not be asked:
    after a fault of the machine, or where the index has it no longer. Without it the one gives an
    inconclusive cell, and the other ends the sweep.

    Overlays are made meanwhile, ahead of the runs, and the processes that the next run is forked
    from do their imports. As many runs go at once as ``jobs``, or as the
    cores or GPUs have room for. Leaving early ends what still runs; what was answered is stored.
    """
    stop, cache_ = threading.Event(), cache_folder()
    jobs = jobs or room(configs[0])
    with (
        Pool(most=2 * jobs + AHEAD) as pool,
        ahead(pool) as prepare,
        overlay.makers() as makers,
        ThreadPoolExecutor(jobs, "cell") as runners,
    ):
        made = [makers.submit(_make_overlay, config, cache_, again) for config in configs]

        def soon(place: int, needed: Future[bool]) -> None:
            if needed.result():
                prepare(configs[place])

        def look_ahead(place: int) -> None:
            if place < len(configs):
                made[place].add_done_callback(partial(soon, place))

        def asked(place: int) -> Cell | None:
            made[place].result()
            look_ahead(place + jobs + AHEAD - 1)
            config = configs[place]
            try:
                return ask(config, cache_, again=again, stop=stop, pool=pool, faults=bool(lost))
            except (UserError, Fault) as error:
                if lost is None:
                    raise
                lost(place, error)
                return None

        for place in range(jobs, jobs + AHEAD - 1):
            look_ahead(place)
        try:
            yield from _as_they_end({runners.submit(asked, n): n for n in range(len(configs))})
        except BaseException:
            stop.set()
            runners.shutdown(wait=False, cancel_futures=True)
            uv.give_up()
            raise


def _as_they_end(waiting: Mapping[Future[Cell | None], int]) -> Iterator[tuple[int, Cell]]:
    for future in as_completed(waiting):
        if cell := future.result():
            yield waiting[future], cell


def room(config: RunConfig) -> int:
    """How many runs of a scenario this machine has room for at once."""
    ranks = catalog.scenario(config.scenario).ranks_of(RELEASED)
    return machine.room(_lane(config) or Lane.CPU, ranks, config.launch.threads)


@contextmanager
def overlays_made(configs: Sequence[RunConfig], *, again: bool = False) -> Iterator[None]:
    """Have the overlays of releases made in the background, in this order, where the answer is not
    stored. Leaving the context gives up what is not done."""
    with overlay.makers() as makers:
        for config in configs:
            makers.submit(_make_overlay, config, cache_folder(), again)
        yield


def _make_overlay(config: RunConfig, cache: Path, again: bool) -> bool:
    """Have the overlay ready; False where nothing has to be run, or what hinders it: the run will
    meet that again and tell."""
    with suppress(HarnessError):
        stack = stack_of(config, RELEASED, cache)
        if again or _read(cache, _question(config, stack)) is None:
            with overlay.borrowed(stack, (), cache):
                return True
    return False


def ask(
    config: RunConfig,
    cache: Path,
    *,
    again: bool = False,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
    faults: bool = False,
) -> Cell:
    """The answer of the release that ``config`` pins: the stored one, else by running it.

    With ``faults``, a fault of the machine is raised, and no answer.
    """
    try:
        question = _question(config, stack_of(config, RELEASED, cache))
        stored = None if again else _read(cache, question)
        if stored:
            return replace(stored, stored=True)
        result, folder = run(config, terminal(io.StringIO()), stop, pool)
    except HarnessError as error:
        if isinstance(error, UserError) or (faults and isinstance(error, Fault)):
            raise
        return _unanswered(config, error)
    cell = _cell(config, result, folder)
    if _lasting(cell, folder):
        _store(cache, question, cell)
    return cell


def _unanswered(config: RunConfig, error: HarnessError) -> Cell:
    unsupported = error.exit_code == ExitCode.UNSUPPORTED
    answer = Status.UNSUPPORTED if unsupported else Status.INCONCLUSIVE
    here = machine.facts()
    return Cell(
        config.scenario,
        chosen_pins(config, RELEASED),
        answer,
        str(error),
        str(_lane(config) or ""),
        here["python"],
        here["torch"],
        _today(),
    )


def _cell(config: RunConfig, result: RunResult, folder: Path) -> Cell:
    (trial,) = result.trials
    told = read_json(folder / RUN_FILE)
    unclear = trial.outcome is Outcome.INCONCLUSIVE
    return Cell(
        config.scenario,
        told["trials"][RELEASED]["pins"],
        STATUSES[trial.outcome],
        trial.reason,
        told["lane"],
        told["machine"]["python"],
        told["machine"]["torch"],
        _today(),
        round(trial.seconds, 2),
        trial.finding.step if trial.finding else None,
        str(folder),
        tuple(last_lines(folder, trial)) if unclear else (),
    )


def _lasting(cell: Cell, folder: Path) -> bool:
    """Whether asking again would give the same: not after a deadline, or for what was refused."""
    if cell.status is Status.INCONCLUSIVE:
        ended = [Exit.read(file.parent) for file in folder.glob(f"{RELEASED}/**/exit.json")]
        return not any(e.timed_out or e.interrupted or e.survivors for e in ended)
    return cell.status.certain


def _lane(config: RunConfig) -> Lane | None:
    told = catalog.scenario(config.scenario)
    try:
        return machine.choose_lane(told, told.ranks_of(RELEASED), config.launch.lane)
    except Unsupported:
        return None


def place(config: RunConfig) -> tuple[str, ...]:
    """Where a cell of this config is asked: the lane, Python and torch, see ``Cell.place``."""
    here = machine.facts()
    return _place(str(_lane(config) or ""), here["python"], here["torch"])


def _place(lane: str, python: str, torch: str | None) -> tuple[str, ...]:
    return lane, ".".join(python.split(".")[:2]), (torch or "").partition("+")[0]


def _question(config: RunConfig, stack: pins.Stack) -> dict[str, Any]:
    """All that an answer depends on, as JSON has it."""
    here = machine.facts()
    question = {
        "format": FORMAT,
        "scenario": config.scenario,
        "pins": dict(stack.pins),
        "overlay": overlay.key(stack),
        "params": asdict(config.params),
        "seed": config.seed,
        "threads": config.launch.threads,
        "lane": str(_lane(config)),
        "python": here["python"],
        "torch": here["torch"],
        "code": code(config.scenario),
    }
    told: dict[str, Any] = json.loads(json.dumps(question))
    return told


@cache
def code(scenario: str) -> str:
    """A digest of our own code that a scenario's answer depends on."""
    ours = (
        "harness.trial.rank",
        "harness.trial.launch",
        "harness.trial.grade",
        "harness.trial.forkserver",
    )
    return catalog.digest(catalog.places()[scenario], *ours)


def _file(folder: Path, question: Mapping[str, Any]) -> Path:
    return folder / f"{_digest(question)[:20]}.json"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(cache: Path, question: Mapping[str, Any]) -> Cell | None:
    """The stored answer to this very question, if there is one that can be believed."""
    for folder in (cache / "cells", machine.own_place(cache, "cells")):
        file = _file(folder, question)
        try:
            return _believed(json.loads(file.read_text(encoding="utf-8")), question)
        except OSError:
            continue  # not there, or not ours to read
        except (ValueError, KeyError, TypeError, RecursionError):
            warn_once(f"{file} was damaged or edited: its release is asked again")
    return None


def _believed(told: Any, question: Mapping[str, Any]) -> Cell:
    """The cell that was stored; raises ValueError, KeyError or TypeError for what was not."""
    content = {part: told[part] for part in ("question", "cell")}
    cell = Cell.from_json(told["cell"])
    same = all(question[part] == getattr(cell, part) for part in ("scenario", "pins", "lane"))
    if told["digest"] != _digest(content) or told["question"] != question or not same:
        raise ValueError("it is not what was stored as the answer to this question")
    return cell


def _store(cache: Path, question: Mapping[str, Any], cell: Cell) -> None:
    file = _file(machine.own_place(cache, "cells"), question)
    with writing(file, "HARNESS_CACHE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"question": question, "cell": cell.to_json()}
        write_whole(file, json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n")


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def exit_code(cells: Sequence[Cell]) -> int:
    """0 where every release that can run here has answered; 3 where one is inconclusive."""
    unclear = any(cell.status is Status.INCONCLUSIVE for cell in cells)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED
