"""Runs a script in a layout: forked ranks under a deadline, and the steps that they recorded."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path

from harness.bugs.api.spec import Lane
from harness.rank.exits import Exit
from harness.rank.probe import compiled, exchange, own_files
from harness.rank.probe.exchange import FILES, Assignment, Step, Task
from harness.rank.probe.own_files import Written
from harness.rank.shims import SHIMMED
from harness.run.launch import RankSettings, rank_environment, supervise
from harness.run.server_pool import OverlayServer, Pool, Wanted
from harness.system.files import ROOT, write_whole, writing
from harness.system.machine import cache_folder, cores, own_folder
from harness.system.text import one_line
from harness.training.probe.layouts import COMPILE, Layout, Settings
from harness.training.probe.target import Target

LONGEST_PATH = 60
"""The longest path of a folder for the sockets of multiprocessing: theirs have at most 107
characters."""

WRITTEN = "written"
"""The subfolder of a run's folder for what ranks write into the user's folders."""

LOG_LINES, LINES_OF_OUTPUT = 12, 4
"""How many of a rank's last lines are shown, and how many of these its output gets if its errors
have more."""

END_OF_LOG, LONGEST_LINE = 20_000, 500
"""Bytes of a log that are read, and characters of a line that are shown."""

NO_STEP = (
    "took no step of an optimizer of torch in {} backwards. probe sees no weights that a script "
    "changes by itself, and no processes that it starts, as with mp.spawn: let an optimizer, such "
    "as torch.optim.SGD, take the steps in the processes of torchrun"
)

AGENT = "harness.rank.probe.launcher"
MOST_AT_ONCE = 4
"""Layouts that run side by side: each rank has its own copy of the model."""

EARLY = (AGENT, "harness.rank.probe.watch", "torch.distributed.fsdp", "torch.utils.data")
"""The modules that ranks import for every script."""

LATE = {
    "accelerate": ("datasets",),
    "transformers": ("accelerate", "datasets"),
    "deepspeed": ("torch._dynamo.testing", "torch._inductor.codecache"),
}
"""Modules that packages import only while they train, which takes a second."""

ENVIRONMENT = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's thread would forbid forks
    "TOKENIZERS_PARALLELISM": "false",  # tokenizers warn in every forked process
    "WANDB_MODE": "disabled",
    # It keeps graphs by the names of the functions that they call. With dropout, and with one that
    # is switched off, these are the same.
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # of the Trainer: a run of each rank, perhaps on a server
}

TRAINING = {
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "trl",
    "lightning",
    "deepspeed",
    "peft",
}
"""Packages that a script which imports them in a function is sure to use."""

ON_CPU = {"ACCELERATE_USE_CPU": "true"}


@dataclass(kw_only=True)
class ScriptFacts:
    """What rank 0 knows of the script after its last step."""

    releases: Mapping[str, str] = field(default_factory=dict)
    """By module, the release that the script has imported."""
    imported: frozenset[str] = frozenset()
    """The files of packages that the script has imported: ``transformers/trainer.py``."""
    loaded: frozenset[str] = frozenset()
    """The user's files that the script has loaded; in the working folder by their paths in it."""
    on_cpu: Mapping[str, int] = field(default_factory=dict)
    """How often the script asked for what a CPU does not have, by kind; it was done on the CPU."""
    relations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of its model, the status and the reason by relation."""


@dataclass
class Run(ScriptFacts):
    """What a layout did."""

    layout: Layout
    ranks: list[list[Step]]
    """The steps of each rank; empty without an answer."""
    seconds: float = 0.0
    failure: str = ""
    """Why there is no answer."""
    log: str = ""
    """The last lines of the rank that failed, or of rank 0."""
    seen: list[list[list[str]]] = field(default_factory=list)
    """By rank, the rows of each step; over an epoch, also of those that are not compared."""
    reported: Sequence[tuple[int, str, float]] = ()
    """The losses of rank 0's evaluations: after how many steps, under which name, which loss."""
    schedule: Mapping[str, int] = field(default_factory=dict)
    """After how many steps the schedule of rank 0 falls to its half, and to its lowest rate."""
    saves: Sequence[tuple[int, str, str, float]] = ()
    """The weights that rank 0 has saved: after how many steps, into which file, where in it, and
    how far from the trained ones, as a part of the way of all steps."""

    @property
    def steps(self) -> int:
        """The steps that every rank took."""
        return min(map(len, self.ranks), default=0)


@dataclass
class Runner:
    """Runs layouts of one script, several at once. A context: at its end no process is left."""

    target: Target
    settings: Settings
    folder: Path
    """For everything that is recorded; temporary."""
    python: str
    timeout: float
    """Seconds for one layout."""
    pool: Pool
    """The server with the script's imports."""
    site: str = ""
    """A folder with packages that come before those of the interpreter, such as an overlay's."""
    gpus: tuple[str, ...] = ()
    """The numbers of the GPUs to run on, one for each rank; empty for the CPU."""
    as_written: bool = False
    """Whether a script that asks for a GPU fails on a CPU, as it would without a probe."""
    written: Written = field(default_factory=Written)
    """What the runs that have ended wrote into the user's folders, or would have."""
    _time_first: bool = False
    """Whether batches have their rows on dimension 1."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _stop: threading.Event = field(default_factory=threading.Event)
    _runs: dict[str, Future[Run]] = field(default_factory=dict)

    @cached_property
    def extensions(self) -> Path:
        """The folder with what an interpreter compiles and imports for scripts."""
        key = hashlib.sha256(self.python.encode()).hexdigest()[:12]
        return own_folder(cache_folder(), "extensions") / f"probe-{key}"

    @property
    def lane(self) -> Lane:
        return Lane.GPU if self.gpus else Lane.CPU

    def __enter__(self) -> Runner:
        # Layouts would share GPUs: one at a time, as each has the first ones.
        at_once = 1 if self.gpus else min(cores(), MOST_AT_ONCE)
        self._workers = ThreadPoolExecutor(at_once, "probe")
        self.folder.mkdir(exist_ok=True)
        self._imports, _ = self._write_imports(), self._folders
        short = len(str(self.folder)) <= LONGEST_PATH
        self._temporary = self.folder if short else Path(tempfile.mkdtemp(dir="/tmp"))
        self._server()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._workers.shutdown(cancel_futures=True)
        if self._temporary != self.folder:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def start(self, layout: Layout) -> Future[Run]:
        """Begin to run a layout, or find the run that has the same name."""
        if layout.name not in self._runs:
            before = self._runs.get(layout.after)
            self._runs[layout.name] = self._workers.submit(self._run, layout, before)
        return self._runs[layout.name]

    def _run(self, layout: Layout, before: Future[Run] | None) -> Run:
        if before is not None and (failed := before.result()).failure:
            why = f"{failed.layout.name}: {failed.failure}"
            return Run(layout, [], failure=why, log=failed.log)
        folder = self._folder(layout.name)
        folder.mkdir()
        self._assign(layout, folder)

        def tick() -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt

        ended = supervise(
            folder,
            [str(folder), str(layout.world)],
            self._environment,
            partial(self._server().start, agent=AGENT),
            ranks=layout.world,
            timeout=self.timeout,
            tick=tick,
        )
        return self._read(layout, folder, ended)

    def _folder(self, name: str) -> Path:
        """The folder of the run of this layout."""
        return self.folder / re.sub(r"[^\w.-]", "", name.replace(" ", "_").replace("/", "-"))

    @cached_property
    def _folders(self) -> list[str]:
        """The user's folders that the script may write into."""
        user_folders = own_files.beside(folders(self.target, self.settings), self.folder.resolve())
        cwd = Path.cwd()
        if not {str(cwd), *map(str, cwd.parents)} & set(user_folders):
            self.written.refusal = f"{cwd} contains the folders of probe itself"
        return user_folders

    def _assign(self, layout: Layout, folder: Path) -> None:
        """Write down what the ranks are to do."""
        settings, shift = self.settings, ""
        if layout.shift:
            shift = str(folder / "shift.pickle")
            Path(shift).write_bytes(exchange.dumped(dict(layout.shift)))
        files_folder = folder / FILES
        if layout.saves or layout.resumed:
            files_folder = self.folder / f"checkpoint_{layout.world}"
        files_folder.mkdir(exist_ok=True)
        temporary = self._temporary / f"t{next(self._numbers)}"
        temporary.mkdir()
        divided = layout.k * (1 if settings.same_rows else layout.world)
        values = {
            "rows": settings.rows // divided,
            "total": settings.rows,
            "k": layout.k,
            "ranks": layout.world,
            "micro_batches": divided,
            "dir": files_folder,
            "at": settings.at,
        }
        assignment = Assignment(
            self.target.script,
            self.target.module,
            self.target.filled(values, layout.more),
            os.getcwd(),
            self._imports,
            keep=[0] if layout.resumed or layout.saves else [0, settings.at],
            # The first batch after a resume may be smaller, and as long as a row.
            rows=0 if layout.resumed and not self._time_first else settings.rows // divided,
            shift=shift,
            constants=self.target.filled_constants(values),
            bugs=settings.bugs,
            on_cpu=self.lane is Lane.CPU and not self.as_written,
            folders=self._folders,
            own=str(folder / WRITTEN),
            earlier=str(self._folder(layout.after) / WRITTEN) if layout.after else "",
            shared=[str(self.folder), str(self.extensions), *own_files.caches()],
            temporary=str(temporary),
            **{each.name: getattr(layout, each.name) for each in fields(Task)},
        )
        (folder / "assignment.json").write_text(json.dumps(asdict(assignment)))

    def _server(self) -> OverlayServer:
        requirements = Wanted(self._environment, (), (*EARLY, self._imports), (), self.python)
        return self.pool.server(requirements)

    @property
    def _environment(self) -> dict[str, str]:
        """The environment of ranks, with the user's path for imports."""
        settings = RankSettings(self.lane, ROOT, self.extensions, 1, self.python, self.gpus)
        ours = rank_environment(settings)
        users = os.environ.get("PYTHONPATH", "")
        path = ours["PYTHONPATH"], self.site, users, str(self.extensions)
        additions = dict(ON_CPU) if self.lane is Lane.CPU else {}
        if cache := own_files.compiled():
            additions[own_files.COMPILED] = cache
        if self.lane is Lane.CPU and compiled.IN_ONE_THREAD not in ours:
            additions[compiled.IN_ONE_THREAD] = "1"
        additions["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return {**ours, **ENVIRONMENT, **additions}

    def _write_imports(self) -> str:
        """Write a module with what the script imports from packages, and return its name: one
        process imports it, and all ranks are forked from that."""
        source, beside = self.target.file, {"__future__"}
        script = source.read_text(errors="replace") if source else ""
        if source is not None:
            folders = [source.parent, *([Path.cwd()] if self.target.module else [])]
            beside |= {path.stem for folder in folders for path in folder.iterdir()}
        words = " ".join([script, self.target.script, *self.target.arguments])
        shimmed_packages = [package for word, package in SHIMMED.items() if word in words]
        lines = [
            "from harness.rank import shims\n"
            f"shims.install_for({shimmed_packages!r}, '{self.lane}')"
        ]
        late = [f"import {m}" for name, modules in LATE.items() if name in words for m in modules]
        lines += imports("\n".join([script, *late]), beside)
        if compiled.ASKED.search(words) or COMPILE in self.settings.layouts:
            lines.append("from harness.rank.probe import compiled\ncompiled.warm_up()")
        text = "\n".join(lines) + "\n"
        name = f"imports_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with writing(self.extensions, "HARNESS_CACHE"):
            self.extensions.mkdir(parents=True, exist_ok=True)
            write_whole(self.extensions / f"{name}.py", text)
        return name

    def _read(self, layout: Layout, folder: Path, ended: Exit) -> Run:
        """What the ranks of a launch have recorded."""
        failure = why_failed(ended, self.timeout, folder, self.target.file)
        log = last_lines(folder, ended)
        ranks, records = [], []
        if failure:
            for lock in self.extensions.rglob("lock"):  # left by a compiler that was ended
                lock.unlink(missing_ok=True)
        else:
            files = [folder / f"rank{n}.pickle" for n in range(layout.world)]
            if all(file.exists() for file in files):
                records = [exchange.loaded(file.read_bytes()) for file in files]
                ranks = [one["steps"] for one in records]
            if not ranks:
                failure = "the script ended its process itself (os._exit)"
            elif not min(map(len, ranks)):
                ranks, skipped, place = [], records[0]["skipped"], records[0]["infinite"]
                failure = NO_STEP.format(records[0]["backwards"])
                if skipped:
                    failure = f"the scaler of the loss skipped all of its {skipped} steps"
                    failure += f"; the first that was not finite is {place}" if place else ""
        self.written.add(own_files.written(folder / WRITTEN, os.getcwd()))
        if not layout.saves:  # what a run saves, the next one loads
            own_files.remove(folder / WRITTEN)
        if not layout.saves and not failure:
            shutil.rmtree(folder, ignore_errors=True)
        facts = {}
        if records:
            of_run = {each.name for each in fields(Run)}
            facts = {name: fact for name, fact in records[0].items() if name in of_run}
            facts["seen"] = [one["seen"] for one in records]
            facts["loaded"] = frozenset(self._of_user(facts["loaded"]))
            if not layout.resumed:
                self._time_first = bool(records[0]["rows_dimension"])
        return Run(layout, ranks, ended.seconds, failure, log, **facts)

    def _of_user(self, files: Iterable[str]) -> Iterator[str]:
        """The script, and those of the loaded files that are not ours and of no package."""
        ours = [ROOT / "harness", ROOT / "scenarios", self.folder, self.extensions, cache_folder()]
        caches = [*own_files.caches(), *filter(None, self.site.split(os.pathsep))]
        folders = [os.path.realpath(path) for path in (*map(str, ours), *caches)]
        script = self.target.file
        names = {*files, *([str(script.resolve())] if script else [])}
        for name in names:
            if not any(os.path.realpath(name).startswith(f"{one}{os.sep}") for one in folders):
                yield name.removeprefix(f"{os.getcwd()}{os.sep}")


PATH = re.compile(r"""(["'])((?:/|~/|\.\./)[^"'\s{}*]+)\1""")
"""A text of a script that is the path of a file."""


def folders(target: Target, settings: Settings) -> list[Path]:
    """The user's folders that a script may write into."""
    checkpoint_arguments = shlex.split(f"{settings.save or ''} {settings.resume or ''}")
    source = target.file.read_text(errors="replace") if target.file else ""
    literals = (found[2] for found in PATH.finditer(source))
    words = [*target.arguments, *target.constants.values(), *checkpoint_arguments, *literals]
    return own_files.folders_of(words, target.file)


def room(target: Target, settings: Settings) -> Path | None:
    """A place for the runs' folders, if the usual place for temporary files lies in one of the
    user's folders: the kernel refuses an overlay on a folder that contains the overlay's files."""
    usual = Path(tempfile.gettempdir()).resolve()
    if not set(folders(target, settings)) & {usual, *usual.parents}:
        return None
    with writing(cache_folder(), "HARNESS_CACHE"):
        fallback = own_folder(cache_folder(), "probe")
        fallback.mkdir(parents=True, exist_ok=True)
    return fallback


def imports(source: str, without: Container[str]) -> Iterator[str]:
    """The imports at the top level of a script, and those of training packages elsewhere; each may
    fail. Others elsewhere may never happen, so they are left out, and so are those of modules in
    ``without``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # the reference will say so
    for node in [*tree.body, *(each for each in ast.walk(tree) if each not in tree.body)]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        packages = {name.partition(".")[0] for name in names}
        if any(name in without for name in packages):
            continue
        if node in tree.body or packages <= TRAINING:
            yield f"try:\n    {ast.unparse(node)}\nexcept Exception:\n    pass"


FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
"""A line of a stack; the innermost comes first."""


def why_failed(ended: Exit, timeout: float, folder: Path, script: Path | None) -> str:
    """Why a launch in ``folder`` gives no answer; empty if it may give one."""
    if ended.timed_out:
        text = f"did not end within {timeout:.0f} s, and was ended"
        return "; ".join(filter(None, (text, where_failed(folder, script))))
    if ended.failure:
        return f"rank {ended.failure['rank']}: {one_line(str(ended.failure['message']))}"
    why = f": {ended.reason}" if ended.reason else ""
    return f"ended with exit code {ended.code}{why}" if ended.code else ""


def where_failed(folder: Path, script: Path | None) -> str:
    """What a rank was doing when it was ended, by the first stack that shows it: the innermost line
    of the script's folder, otherwise of any file."""
    beside = str(script.resolve().parent) if script else ""
    for file in sorted(folder.glob("stack_rank_*.txt")):
        lines = FRAME.findall(file.read_text(errors="replace"))
        lines_of_script = [line for line in lines if beside and line[0].startswith(beside)]
        for path, number, function in (lines_of_script or lines)[:1]:
            rank = file.stem.removeprefix("stack_rank_")
            return f"rank {rank} was in {function} ({Path(path).name}, line {number})"
    return ""


def last_lines(folder: Path, ended: Exit) -> str:
    """The last lines of the rank that failed, or of rank 0: its output, then its errors. If no rank
    is known to have failed and rank 0 printed nothing, the last lines of the agent."""
    logs = folder / "logs" / f"rank_{(ended.failure or {}).get('rank', 0)}"
    output, errors = _lines(logs / "stdout.log"), _lines(logs / "stderr.log")
    errors = errors[-(LOG_LINES - min(len(output), LINES_OF_OUTPUT)) :]
    output = output[max(0, len(output) - (LOG_LINES - len(errors))) :]
    agent = [] if ended.failure else _lines(folder / "torchrun.log")[-LOG_LINES:]
    return "\n".join([*output, *errors] or agent)


def _lines(file: Path) -> list[str]:
    """The last lines of a log that are not empty."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - END_OF_LOG))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
