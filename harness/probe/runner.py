"""Runs a script in a layout: forked ranks under a deadline, and the steps that they recorded."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from harness.api.spec import Lane
from harness.launch.exits import Exit
from harness.launch.launch import RankSettings, rank_environment, supervise
from harness.launch.server_pool import OverlayServer, Pool, Wanted
from harness.probe.layouts import Layout, Settings
from harness.probe.rank import compiled, exchange, on_cpu
from harness.probe.rank.exchange import Assignment
from harness.probe.rank.on_cpu import SHIMMED
from harness.probe.target import Target
from harness.system.files import ROOT, write_whole, writing
from harness.system.machine import cores

AGENT = "harness.probe.rank.forks"
MOST_AT_ONCE = 4
"""Layouts that run side by side: each rank has its own copy of the model."""

MOST_FILES = 50
"""Files beside a script that are searched for what it asks of CUDA."""

EARLY = (AGENT, "harness.probe.rank.watch", "torch.distributed.fsdp", "torch.utils.data")
"""What ranks import whatever the script is."""

LATE = {
    "accelerate": ("datasets",),
    "transformers": ("accelerate", "datasets"),
    "deepspeed": ("torch._dynamo.testing", "torch._inductor.codecache"),
}
"""What packages import only while they train, and takes a second."""

ENVIRONMENT = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's thread would forbid forks
    "TOKENIZERS_PARALLELISM": "false",  # tokenizers warn in every forked process
    "WANDB_MODE": "disabled",
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

Step = dict[str, Any]


@dataclass
class Run:
    """What a layout did."""

    layout: Layout
    ranks: list[list[Step]]
    """The steps of each rank; empty without an answer."""
    seconds: float = 0.0
    failure: str = ""
    """Why there is no answer."""
    log: str = ""
    """The end of what the failing rank wrote."""
    seen: list[list[list[str]]] = field(default_factory=list)
    """By rank, the rows of each step; over an epoch, also of those that are not compared."""
    reported: list[list[tuple[int, str, float]]] = field(default_factory=list)
    """By rank, the losses of evaluations: after how many steps, under which name, which loss."""

    releases: Mapping[str, str] = field(default_factory=dict)
    imported: frozenset[str] = frozenset()
    """The files of packages that rank 0 has imported: ``transformers/trainer.py``."""
    """By module, the release that rank 0 has imported."""
    on_cpu: Mapping[str, int] = field(default_factory=dict)
    """How often rank 0 asked for what a CPU does not have, by kind; it was done on the CPU."""
    relations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of the model of rank 0, the status and the reason by relation."""
    schedule: Mapping[str, int] = field(default_factory=dict)
    """After how many steps the schedule of rank 0 falls to its half, and to its lowest rate."""

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
    extensions: Path
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
    _stop: threading.Event = field(default_factory=threading.Event)
    _runs: dict[str, Future[Run]] = field(default_factory=dict)

    @property
    def lane(self) -> Lane:
        return Lane.GPU if self.gpus else Lane.CPU

    def __enter__(self) -> Runner:
        # Layouts would share GPUs: one at a time, as each has the first ones.
        at_once = 1 if self.gpus else min(cores(), MOST_AT_ONCE)
        self._workers = ThreadPoolExecutor(at_once, "probe")
        self._imports = self._write_imports()
        self._server()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._workers.shutdown(cancel_futures=True)

    def start(self, layout: Layout) -> Future[Run]:
        """Begin to run a layout, or find the run that has the same name."""
        if layout.name not in self._runs:
            before = self._runs.get(layout.after)
            self._runs[layout.name] = self._workers.submit(self._run, layout, before)
        return self._runs[layout.name]

    def _run(self, layout: Layout, before: Future[Run] | None) -> Run:
        if before is not None and (failed := before.result()).failure:
            return Run(layout, [], failure=f"{failed.layout.name}: {failed.failure}")
        folder = self.folder / layout.name.replace(" ", "_").replace(",", "")
        folder.mkdir()
        self._assign(layout, folder)
        ended = supervise(
            folder,
            [str(folder), str(layout.world)],
            self._environment,
            partial(self._server().start, agent=AGENT),
            ranks=layout.world,
            timeout=self.timeout,
            tick=self._tick,
        )
        return self._read(layout, folder, ended)

    def _assign(self, layout: Layout, folder: Path) -> None:
        """Write down what the ranks are to do."""
        settings, shift = self.settings, ""
        if layout.shift:
            shift = str(folder / "shift.pickle")
            Path(shift).write_bytes(exchange.dumped(dict(layout.shift)))
        own = folder / "files"
        if layout.saves or layout.resumed:
            own = self.folder / f"checkpoint_{layout.world}"
        own.mkdir(exist_ok=True)
        divided = layout.k * (1 if settings.same_rows else layout.world)
        values = {
            "rows": settings.rows // divided,
            "k": layout.k,
            "ranks": layout.world,
            "micro_batches": divided,
            "dir": own,
            "at": settings.at,
        }
        assignment = Assignment(
            self.target.script,
            self.target.module,
            self.target.filled(values, layout.more),
            os.getcwd(),
            self._imports,
            layout.steps,
            keep=[0] if layout.resumed or layout.saves else [0, settings.at],
            saves=layout.saves,
            epoch=layout.epoch,
            perturb=layout.perturb,
            one_order=layout.one_order,
            shift=shift,
            move=0.0 if layout.resumed else settings.perturb,
            constants=self.target.filled_constants(values),
            relations=list(layout.relations),
            on_cpu=self._on_cpu,
        )
        (folder / "assignment.json").write_text(json.dumps(asdict(assignment)))

    def _tick(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt

    def _server(self) -> OverlayServer:
        wanted = Wanted(self._environment, (), (*EARLY, self._imports), (), self.python)
        return self.pool.server(wanted)

    @property
    def _environment(self) -> dict[str, str]:
        """That of ranks, with the user's own path for imports."""
        settings = RankSettings(self.lane, ROOT, self.extensions, 1, self.python, self.gpus)
        ours = rank_environment(settings)
        users = os.environ.get("PYTHONPATH", "")
        path = ours["PYTHONPATH"], self.site, users, str(self.extensions)
        on_cpu = ON_CPU if self.lane is Lane.CPU else {}
        if self.lane is Lane.CPU and compiled.IN_ONE_THREAD not in ours:
            on_cpu = {**on_cpu, compiled.IN_ONE_THREAD: "1"}
        return {**ours, **ENVIRONMENT, **on_cpu, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    @cached_property
    def _on_cpu(self) -> bool:
        """Whether what the script asks of CUDA is done on the CPU: not if it asks nothing."""
        source = self.target.file
        if self.as_written or self.lane is not Lane.CPU or source is None:
            return False
        beside = [source, *(file for file in source.parent.glob("*.py") if file != source)]
        return any(on_cpu.needed(file.read_text(errors="replace")) for file in beside[:MOST_FILES])

    def _write_imports(self) -> str:
        """Write a module with what the script imports from packages, and return its name: one
        process imports it, and all ranks are forked from that."""
        source, beside = self.target.file, {"__future__"}
        script = source.read_text(errors="replace") if source else ""
        if source is not None:
            folders = [source.parent, *([Path.cwd()] if self.target.module else [])]
            beside |= {path.stem for folder in folders for path in folder.iterdir()}
        words = " ".join([script, *self.target.arguments])
        named = [package for word, package in SHIMMED.items() if word in words]
        lines = [
            f"from harness.probe.rank import on_cpu\non_cpu.install_shims({named!r}, '{self.lane}')"
        ]
        late = [f"import {m}" for name, modules in LATE.items() if name in words for m in modules]
        lines += imports("\n".join([script, *late]), beside)
        if compiled.ASKED.search(words):
            lines.append("from harness.probe.rank import compiled\ncompiled.warm_up()")
        text = "\n".join(lines) + "\n"
        name = f"imports_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with writing(self.extensions, "HARNESS_CACHE"):
            self.extensions.mkdir(parents=True, exist_ok=True)
            write_whole(self.extensions / f"{name}.py", text)
        return name

    def _read(self, layout: Layout, folder: Path, ended: Exit) -> Run:
        """What the ranks of a launch have recorded."""
        failure, log = why_failed(ended, self.timeout, folder, self.target.file), ""
        ranks, records = [], []
        if failure:
            for lock in self.extensions.rglob("lock"):  # of a compiler that was ended
                lock.unlink(missing_ok=True)
            log = log_of(folder, ended)
        else:
            files = [folder / f"rank{n}.pickle" for n in range(layout.world)]
            records = [exchange.loaded(file.read_bytes()) for file in files]
            ranks = [one["steps"] for one in records]
            if not min(map(len, ranks)):
                failure, log = _no_step(records), log_of(folder, ended)
                ranks = []
        if not layout.saves and not failure:
            shutil.rmtree(folder, ignore_errors=True)
        seen, reported = ([one[what] for one in records] for what in ("seen", "reported"))
        releases = records[0]["releases"] if records else {}
        imported = frozenset(records[0]["imported"]) if records else frozenset()
        found = Run(layout, ranks, ended.seconds, failure, log, seen, reported, releases, imported)
        if records:
            found.on_cpu, found.schedule = records[0]["on_cpu"], records[0]["schedule"]
            found.relations = records[0]["relations"]
        return found


def imports(source: str, without: Container[str]) -> Iterator[str]:
    """The imports at the top level of a script, each of which may fail, and those of training
    packages elsewhere; not other ones elsewhere, which may never happen, and not those of modules
    in ``without``."""
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


def _no_step(records: Sequence[Mapping[str, Any]]) -> str:
    """Why ranks that ended have no step."""
    skipped, place = (records[0][what] for what in ("skipped", "infinite"))
    if not skipped:
        return "took no step of an optimizer of torch"
    text = f"the scaler of the loss skipped all of its {skipped} steps"
    return f"{text}; the first that was not finite is {place}" if place else text


FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
"""A line of a stack, of which the innermost comes first."""


def why_failed(ended: Exit, timeout: float, folder: Path, script: Path | None) -> str:
    """Why a launch in ``folder`` gives no answer; empty if it may give one."""
    if ended.timed_out:
        text = f"did not end within {timeout:.0f} s, and was ended"
        return "; ".join(filter(None, (text, where_failed(folder, script))))
    if ended.failure:
        return f"rank {ended.failure['rank']}: {ended.failure['message']}"
    return f"ended with exit code {ended.code}" if ended.code else ""


def where_failed(folder: Path, script: Path | None) -> str:
    """What the first rank that says so was doing when it was ended: the innermost line of the
    script's folder, otherwise of any file."""
    beside = str(script.resolve().parent) if script else ""
    for file in sorted(folder.glob("stack_rank_*.txt")):
        lines = FRAME.findall(file.read_text(errors="replace"))
        if any("cpp_extension" in path for path, *_ in lines):
            return "it was building a C++ extension: build it before, or give it more --timeout"
        own = [line for line in lines if beside and line[0].startswith(beside)]
        for path, number, function in (own or lines)[:1]:
            rank = file.stem.removeprefix("stack_rank_")
            return f"rank {rank} was in {function} ({Path(path).name}, line {number})"
    return ""


def log_of(folder: Path, ended: Exit) -> str:
    """The end of the log of the rank that failed, or of the agent if no rank did."""
    rank = (ended.failure or {}).get("rank", 0)
    for file in (folder / "logs" / f"rank_{rank}" / "stderr.log", folder / "torchrun.log"):
        with suppress(OSError):
            if text := file.read_text(errors="replace").strip():
                return text[-3000:]
    return ""
