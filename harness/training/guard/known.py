"""The bugs of the catalogue as a file for the ranks, which import nothing of the harness.

A rank compares the releases, the settings and the objects that it sees with this file, see
``facts`` in ``harness.rank.guard``. A bug whose trigger also needs what no rank sees is not
certain: it is named only by an alarm with the bug's signature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.bugs import catalog, remedies, result_file
from harness.bugs.api.settings import CODE
from harness.bugs.lookup import lookup
from harness.bugs.packages import import_name, upstreams
from harness.bugs.results import Status
from harness.system.files import write_whole

VISIBLE = (
    "ranks",
    "gradient_accumulation_steps",
    "precision",
    "trainer",
    "zero_stage",
    "gradient_clipping",
    "dynamic_loss_scale",
    "pipeline_parallel",
    "tensor_parallel",
    "distributed_optimizer",
    "warmup_of_deepspeed",
    "muon_of_deepspeed",
    "offload_optimizer",
    "contiguous_gradients",
)
"""The settings of a run that ``facts`` of a rank may see, under the catalogue's names for them."""

SIGNS = {
    "gradient": "gradients/mean gradients/none",
    "gradient, accumulation": "accumulation/stages accumulation/terms accumulation/tokens "
    "accumulation/uneven",
    "gradient, resume": "checkpoints/weights",
    "stale gradients": "gradients/stale",
    "update": "gradients/clip gradients/norm gradients/scale replicas/differ updates/formula "
    "updates/settings",
    "weights": "replicas/differ",
    "weights, resume": "checkpoints/file checkpoints/numbers checkpoints/parts checkpoints/state "
    "checkpoints/weights",
    "samples": "samples/again samples/shared",
    "samples, accumulation": "accumulation/early",
    "samples, resume": "samples/resume",
    "order of samples": "samples/order",
    "learning rate": "schedule/ahead schedule/first schedule/still",
    "learning rate, resume": "checkpoints/rate schedule/again schedule/count schedule/other "
    "schedule/resume schedule/state",
}
"""The alarms that see what breaks a relation of probe, by check and kind: in any layout, and in
those that accumulate or resume. A resumed layout has none of the former, but for gradients."""

NOTE = "the reference's gradient is # times that of the mean cross-entropy"
"""How a note of probe begins that says what the alarm ``accumulation/tokens`` sees."""

TIMES = "accumulation/weight gradients/longer"
"""The alarms that see a gradient which is a multiple of the right one."""


def write(path: Path) -> None:
    """Write the file: it has the affected releases of each bug."""
    content = {"packages": packages(), "bugs": list(bugs())}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def packages() -> dict[str, str]:
    """Each package of the catalogue, and what publishes it again, by the module of its code."""
    names = [
        name for package, upstream in upstreams().items() for name in (package, *upstream.copies)
    ]
    return {import_name(name): name for name in names}


def bugs() -> Iterator[dict[str, Any]]:
    """Each bug that settings or code set off, with the releases that have it."""
    for name in catalog.sound():
        scenario = catalog.scenario(name)
        releases = _affected(name)
        if not releases or not scenario.settings:
            continue
        rules = {key: scenario.settings[key] for key in VISIBLE if key in scenario.settings}
        if len(scenario.launches) > 1:  # who does not resume does not meet it
            rules["resumed"] = True
        decides = scenario.seen and not scenario.seen_in_part
        unseen = set(scenario.settings) - set(VISIBLE) - ({CODE} if decides else set())
        bug = {
            "name": name,
            "title": scenario.title,
            "settings": rules,
            "seen": scenario.seen,
            "code": scenario.settings.get(CODE, ""),
            "certain": not unseen,
            "remedy": remedies.of(name),
            "signature": _signature(catalog.folder(name) / "probe.json"),
        }
        yield from ({**bug, "affected": affected} for affected in releases)


def _affected(name: str) -> list[dict[str, list[str]]]:
    """The affected releases, by the module that a rank imports: of one package, all that the
    catalogue has tested with any bug, as ``check`` looks them up; of several, the tested ones."""
    packages = catalog.scenario(name).deciding
    by_others: dict[tuple[str, ...], list[str]] = {}
    for subject, *others in _points(name, packages):
        of_subject = by_others.setdefault(tuple(others), [])
        point = dict(zip(packages, (subject, *others), strict=True))
        if subject not in of_subject and lookup(name, point).status is Status.AFFECTED:
            of_subject.append(subject)
    modules = list(map(import_name, packages))
    return [
        dict(zip(modules, [of_subject, *([other] for other in others)], strict=True))
        for others, of_subject in by_others.items()
        if of_subject
    ]


def _points(name: str, packages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The releases that may be affected. Of one package, none is beyond the affected ones."""
    cells = [cell for cell in result_file.statuses(name) if cell.status is Status.AFFECTED]
    if len(packages) == 1 and cells:
        (package,) = packages
        versions = [Version(cell.pins[package]) for cell in cells]
        for release in result_file.tested_releases(package):
            if min(versions) <= Version(release) <= max(versions):
                yield (release,)
    elif packages:
        yield from (tuple(cell.pins[package] for package in packages) for cell in cells)


def _signature(file: Path) -> list[str]:
    """The alarms that go with a bug, by what a probe of it has shown."""
    if not file.is_file():
        return []
    recorded = json.loads(file.read_text(encoding="utf-8")).get("recorded", {})
    signs, others = (recorded.get(name, {}).get("shown", []) for name in ("buggy", "fixed"))
    has_note, others_have_it = (
        any(sign.get("note") and sign["relation"].startswith(NOTE) for sign in some)
        for some in (signs, others)
    )
    alarms = set().union(*(_alarms(sign) for sign in signs if not sign.get("note")))
    # The loop may have the note with any release.
    return sorted(alarms | ({"accumulation/tokens"} if has_note and not others_have_it else set()))


def _alarms(sign: Mapping[str, Any]) -> Iterator[str]:
    """The alarms that see what a probe has shown in a layout."""
    relation, layout = sign["relation"], sign["layout"]
    if relation == "gradient" and sign["times"]:
        yield from (f"{alarm}/{sign['times']}" for alarm in TIMES.split())
        return
    if "resume" in layout:
        yield from SIGNS.get(f"{relation}, resume", "").split()
    if "resume" not in layout or relation == "gradient":
        yield from SIGNS.get(relation, "").split()
    if layout in ("accumulation", "both"):
        yield from SIGNS.get(f"{relation}, accumulation", "").split()
