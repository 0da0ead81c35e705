"""A hunt: right loops are probed on the newest releases of a day; what breaks is news.

Each result is stored in the cache, by the releases and by our own code: so the next hunt probes
only what came out since, and a hunt that was ended goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from packaging.version import Version

from harness.bugs import catalog, pins, result_file
from harness.bugs.api.spec import BUGGY
from harness.bugs.lookup import lookup
from harness.bugs.results import Status
from harness.releases import index, overlay, overlay_cache
from harness.releases.releases import settled
from harness.run.server_pool import Pool
from harness.system import store
from harness.system.code import digest
from harness.system.errors import ExitCode, HarnessError, Inconclusive
from harness.system.files import sha256
from harness.system.machine import cache_folder
from harness.system.text import markdown, markdown_table
from harness.training.probe import loops, signatures
from harness.training.probe.prober import Loop, Prober
from harness.training.probe.signatures import ProbeResult, Sign
from harness.training.probe.stacks import HuntedStack

CODE = (
    "harness.training.probe.questions",
    "harness.rank.probe.script",
    "harness.rank.probe.launcher",
)
"""The modules that results depend on, with all that they import."""

Say = Callable[[str], object]
Kind = tuple[str, str, str]


@dataclass(frozen=True)
class Probed:
    """A loop that was probed with some releases."""

    row: tuple[int, ...]
    loop: Loop
    result: ProbeResult

    @property
    def news(self) -> frozenset[Kind]:
        return frozenset(one.kind for one in self.result.shown if one.is_news)

    def of(self, relation: str) -> frozenset[Kind]:
        """The news about one relation, or one note."""
        return frozenset(kind for kind in self.news if kind[1] == relation)

    @property
    def unclear(self) -> str:
        """Why there is no answer, for the whole or for layouts; empty if there is one."""
        silent = [kind for kind, status in self.result.statuses.items() if status == "no answer"]
        return self.result.no_answer or (f"no answer: {', '.join(silent)}" if silent else "")


@dataclass
class Breakage:
    """The same relations, broken in one or more loops of a stack."""

    stack: str
    releases: dict[str, str]
    shown: list[Sign]
    simplest: str
    """The loop with the fewest settings that shows it."""
    seen: int
    """In how many of the loops."""
    since: str = ""
    """The first release that has it, as far as was searched."""
    known: list[str] = field(default_factory=list)
    """Bugs of the catalogue with this signature that these releases have."""


@dataclass
class Hunted:
    """What a hunt found in a stack."""

    stack: str
    releases: dict[str, str]
    probed: int = 0
    left: int = 0
    """Settings that were not probed, because the time was over."""
    findings: list[Breakage] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)
    """Why loops gave no answer, by their names."""
    seconds: float = 0.0


@dataclass
class Hunter:
    """Probes loops with the releases of a day, or finds the stored result."""

    pool: Pool
    say: Say = print
    deadline: float = float("inf")
    """The time.monotonic() after which no new setting is probed, and no release is searched."""

    def hunt(self, stack: HuntedStack, day: str) -> Hunted:
        """Probe the settings of a stack, and search the first release of what breaks."""
        releases, began = newest(stack.packages, day), time.monotonic()
        hunted = Hunted(stack.name, releases)
        probed: list[Probed] = []
        for row in stack.rows():
            if time.monotonic() > self.deadline:
                hunted.left += 1
                continue
            loop = stack.loop_of(row)
            self.say(f"{stack.name}: {loop.name}")
            probed.append(Probed(row, loop, self.result(loop, releases, day)))
        hunted.probed = len(probed)
        hunted.unclear = {one.loop.name: one.unclear for one in probed if one.unclear}
        relations = sorted({relation for one in probed for _, relation, _ in one.news})
        hunted.findings = [
            self._finding(stack, releases, day, relation, having)
            for relation in relations
            for having in related(probed, relation)
        ]
        hunted.seconds = time.monotonic() - began
        return hunted

    def _finding(
        self,
        stack: HuntedStack,
        releases: dict[str, str],
        day: str,
        relation: str,
        having: Sequence[Probed],
    ) -> Breakage:
        simple = min(having, key=_others)
        for place, choice in enumerate(simple.row):
            if not choice:
                continue
            row = (*simple.row[:place], 0, *simple.row[place + 1 :])
            loop = stack.loop_of(row)
            rerun = Probed(row, loop, self.result(loop, releases, day))
            if rerun.of(relation) == simple.of(relation):
                simple = rerun
        signs = [one for one in simple.result.shown if one.kind in simple.of(relation)]
        fault = Breakage(stack.name, releases, signs, simple.loop.name, len(having))
        fault.known = _known_bugs(simple.of(relation), simple.loop, releases)
        fault.since = _recorded_since(fault.known, stack.packages[0], releases) or self._since(
            stack, releases, day, simple, relation
        )
        return fault

    def _since(
        self, stack: HuntedStack, releases: dict[str, str], day: str, simple: Probed, relation: str
    ) -> str:
        """The first release of the stack's subject that breaks the relation, in words."""
        subject = stack.packages[0]
        candidates = [r for r in index.installable(subject, day) if r.day >= EARLIEST]
        versions, days = [r.version for r in candidates], {r.version: r.day for r in candidates}

        def has(version: str) -> bool | None:
            if time.monotonic() > self.deadline:
                return None
            self.say(f"{stack.name}: {simple.loop.name}, {subject} {version}")
            cutoff = settled(days[version], pins.here()[0])
            try:
                older_releases = newest(stack.packages, cutoff) | {subject: version}
            except Inconclusive:  # one of the others is younger
                return None
            probed = Probed(
                (), simple.loop, self.result(simple.loop, older_releases, cutoff, passing=True)
            )
            if probed.unclear and not probed.of(relation):
                return None
            return bool(probed.of(relation) & simple.of(relation))

        first_version, before = first_with(versions[: versions.index(releases[subject]) + 1], has)
        return f"{subject} {first_version}" + (f"; {before} is right" if before else " or earlier")

    def result(
        self, loop: Loop, releases: dict[str, str], day: str, passing: bool = False
    ) -> ProbeResult:
        """What a loop shows with these releases, stored or probed now. Overlays that are only
        ``passing`` are deleted again: a search needs many, and each only once."""
        inputs = _inputs(loop, releases, day)
        if stored := store.read(signatures.from_json, cache_folder(), inputs):
            return stored
        outcome = self._probed(loop, releases, day, passing)
        if outcome.no_answer:  # perhaps the machine's fault: the next hunt tries again
            return outcome
        store.write(cache_folder(), inputs, asdict(outcome))
        return outcome

    def _probed(self, loop: Loop, releases: dict[str, str], day: str, passing: bool) -> ProbeResult:
        import torch

        installed, python = str(torch.__version__), pins.here()
        try:
            stack = pins.Stack(releases, day, *python)
            with ExitStack() as after_use, overlay.borrow(stack, (), cache_folder()) as borrowed:
                if borrowed.is_new and passing:
                    after_use.callback(overlay_cache.delete, cache_folder(), borrowed.key)
                answers = Prober(self.pool, borrowed.site)(loop)
            return signatures.recorded(answers, releases, installed, day)
        except HarnessError as error:
            why = " ".join(str(error).split())[:300]
            return ProbeResult(releases, installed, day, {}, no_answer=why)


def related(probed: Sequence[Probed], relation: str) -> list[list[Probed]]:
    """The loops that break a relation, in groups that have a layout and a ratio in common."""
    groups: list[list[Probed]] = []
    for loop in probed:
        near = [g for g in groups if any(loop.of(relation) & other.of(relation) for other in g)]
        if loop.of(relation):
            groups = [g for g in groups if g not in near]
            groups.append([each for group in near for each in group] + [loop])
    return groups


EARLIEST = "2023-06-01"
"""Releases before that are not searched for the first one with a fault."""


def first_with(
    versions: Sequence[str], has: Callable[[str], bool | None]
) -> tuple[str, str | None]:
    """The first version with the fault of the last version, and the version before it.

    The search goes back in growing steps, then halves the distance. A version without an answer
    ends the search: the second value is None then.
    """
    wrong_at, step = len(versions) - 1, 1
    right_at: int | None = None
    while wrong_at > 0 if right_at is None else wrong_at - right_at > 1:
        at = max(wrong_at - step, 0) if right_at is None else (wrong_at + right_at) // 2
        answer = has(versions[at])
        if answer is None:
            return versions[wrong_at], None
        if answer:
            wrong_at, step = at, step * 2
        else:
            right_at = at
    return versions[wrong_at], None if right_at is None else versions[right_at]


def newest(packages: Sequence[str], day: str) -> dict[str, str]:
    """The newest release of each package on a day, by its version."""
    return {package: index.newest(package, day) for package in packages}


def _others(probed: Probed) -> int:
    """How many settings are not at their default."""
    return sum(map(bool, probed.row))


def _known_bugs(news: frozenset[Kind], loop: Loop, releases: dict[str, str]) -> list[str]:
    """The bugs of the catalogue with this signature that these releases have."""
    bugs = []
    for name in catalog.sound():
        signature = signatures.read(catalog.folder(name))
        if signature is None or not news & {one.kind for one in signature.signs}:
            continue
        if catalog.scenario(name).subject not in releases:
            continue
        if not all(words in loop.arguments for words in signature.needs):
            continue
        of = lookup(name, releases)
        if catalog.scenario(name).variant(BUGGY).defects:  # an edit puts it back: releases lack it
            has = of.status is Status.AFFECTED
        else:
            has = Status.NOT_AFFECTED not in (of.status, of.nearest)  # unknown: a new release
        if has:
            bugs.append(name)
    return bugs


def _recorded_since(bugs: Sequence[str], subject: str, releases: dict[str, str]) -> str:
    """The first release with a known bug, among the releases tested for the catalogue."""
    for name in bugs:
        if catalog.scenario(name).subject != subject:
            continue
        statuses: dict[Version, str] = {}
        for cell in result_file.statuses(name):
            if cell.status.certain:
                statuses[Version(cell.pins[subject])] = cell.status
        earlier = [v for v in sorted(statuses) if v <= Version(releases[subject])]
        right_versions = [v for v in earlier if statuses[v] == Status.NOT_AFFECTED]
        wrong_versions = [v for v in earlier if not right_versions or v > right_versions[-1]]
        if wrong_versions:
            before = f"; {right_versions[-1]} is right" if right_versions else " or earlier"
            return f"{subject} {wrong_versions[0]}{before}"
    return ""


def _inputs(loop: Loop, releases: dict[str, str], day: str) -> dict[str, Any]:
    """All that a result depends on."""
    import torch

    return {
        "loop": asdict(loop),
        "save": loop.settings().save,
        "arguments": loop.target().arguments,
        "releases": releases,
        "day": day,
        "python": pins.here(),
        "torch": str(torch.__version__),
        "code": digest(*CODE),
        "script": sha256(Path(loops.script(loop.script))),
    }


def exit_code(hunts: Sequence[Hunted]) -> int:
    """1 if something broke that the catalogue does not know, otherwise 3 if a loop gave no answer,
    or was left out."""
    findings = [one for hunted in hunts for one in hunted.findings]
    if any(not one.known for one in findings):
        return ExitCode.NOT_AS_EXPECTED
    unclear = any(hunted.unclear or hunted.left or not hunted.probed for hunted in hunts)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def text(hunted: Hunted) -> Iterator[str]:
    """The lines about a stack."""
    releases = pins.describe(hunted.releases)
    omission = f", {hunted.left} left out" if hunted.left else ""
    yield (
        f"{hunted.stack} ({releases}): {hunted.probed} settings probed{omission} in "
        f"{hunted.seconds:.0f} s"
    )
    for finding in hunted.findings:
        label = f"known: {', '.join(finding.known)}" if finding.known else "NOT KNOWN"
        yield (
            f"  {label}; since {finding.since}; in {finding.seen} settings, "
            f"the simplest {finding.simplest}"
        )
        yield from (f"    {_sign_text(each)}" for each in finding.shown)
    for name, why in hunted.unclear.items():
        yield f"  no answer: {name}: {why}"
    if hunted.probed and not hunted.findings and not hunted.unclear:
        yield "  all as the reference"


def _sign_text(sign: Sign) -> str:
    ratio = (
        f" {sign.ratio:.4g} times" + (f" ({sign.times})" if sign.times else "")
        if sign.ratio
        else ""
    )
    return f"{sign.layout or 'note'}: {sign.relation}{ratio}"


def markdown_page(day: str, hunts: Sequence[Hunted]) -> str:
    """A table of the findings of a day, and the loops without an answer."""
    columns = ["releases", "what breaks", "since", "known as", "probed with"]
    rows = [_row(one) for hunted in hunts for one in hunted.findings]
    probed = sum(hunted.probed for hunted in hunts)
    silent = [
        f"{hunted.stack}: `{name}`: {markdown(why)}"
        for hunted in hunts
        for name, why in hunted.unclear.items()
    ]
    lines = [f"## The newest releases of {day}", f"{probed} settings were probed."]
    lines += [markdown_table(columns, rows)] if rows else ["All were as the reference."]
    lines += ["No answer:\n\n" + "\n".join(f"- {line}" for line in silent)] if silent else []
    return "\n\n".join(lines) + "\n"


def _row(finding: Breakage) -> list[str]:
    signs = "<br>".join(markdown(_sign_text(each)) for each in finding.shown)
    bugs = ", ".join(f"`{name}`" for name in finding.known) or "not known"
    return [pins.describe(finding.releases), signs, finding.since, bugs, f"`{finding.simplest}`"]


class HuntJson(TypedDict):
    """What ``watch --hunt --json`` writes."""

    day: str
    stacks: list[Hunted]


def as_json(day: str, hunts: Sequence[Hunted]) -> str:
    """The hunts of a day, as JSON."""
    content: HuntJson = {"day": day, "stacks": list(hunts)}
    return json.dumps(content, indent=1, default=asdict) + "\n"
