"""The table of docs/probe_results.md: which bugs of the catalogue ``probe`` finds."""

from __future__ import annotations

from collections.abc import Iterator

from harness import catalog
from harness.probe import signatures
from harness.probe.compare.relations import MISTAKES
from harness.probe.signatures import Shown, Signature
from harness.system.files import ROOT
from harness.system.text import markdown, markdown_table

NAME = "probe_results.md"
"""The page with the table, beside docs/bugs.md."""
BEGIN, END = (
    "<!-- bugs that probe finds: generated -->",
    "<!-- end of the bugs that probe finds -->",
)

LAYOUTS = {
    "ranks": "ranks",
    "accumulation": "micro-batches",
    "both": "ranks x micro-batches",
    "resume": "resume",
    "seed": "another seed",
    "ranks-resume": "resume on several ranks",
}


def text() -> str:
    """The figures and the table, in Markdown."""
    known = {name: signatures.read(catalog.folder(name)) for name in catalog.sound()}
    found = {n: s for n, s in known.items() if s and s.concerns_loops and s.shown}
    missed = {n: s for n, s in known.items() if s and s.concerns_loops and not s.shown}
    other = [n for n, s in known.items() if s and not s.concerns_loops]
    unseen = [n for n, s in known.items() if s is None]
    total, alarms = len(found) + len(missed), [n for n, s in found.items() if s.false_alarms]
    rows = [[_link(name), _release(s), _first(s)] for name, s in found.items()]
    rows += [[_link(name), "", f"missed: {markdown(s.why)}"] for name, s in missed.items()]
    return "\n\n".join(
        [
            f"`probe` finds {len(found)} of the {total} bugs that concern a training loop. Of the "
            f"releases without these bugs, {len(alarms) or 'none'} {_alarm(alarms)}."
            + (f" Not about loops: {', '.join(map(_link, other))}." if other else "")
            + (f" Not tried yet: {', '.join(map(_link, unseen))}." if unseen else ""),
            markdown_table(["bug", "probed with", "what breaks first"], rows),
        ]
    )


def _alarm(names: list[str]) -> str:
    if not names:
        return "has a broken relation"
    return f"{'has' if len(names) == 1 else 'have'} a broken relation ({', '.join(names)})"


def _link(name: str) -> str:
    return f"[`{name}`](../{catalog.folder(name).relative_to(ROOT)}/README.md)"


def _release(signature: Signature) -> str:
    pins = signature.recorded["buggy"].pins
    return ", ".join(f"{name} {version}" for name, version in list(pins.items())[:1])


def _first(signature: Signature) -> str:
    """What is broken in which layouts; the notes only where nothing is."""
    broken = [one for one in signature.shown if not one.note]
    return "; ".join(_grouped(broken)) or "; ".join(
        f"a note: {markdown(one.relation)}" for one in signature.shown
    )


def _grouped(broken: list[Shown]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in broken:
        groups.setdefault((one.relation, one.times), []).append(LAYOUTS[one.layout])
    for (relation, times), layouts in groups.items():
        ratio = f", {times} times: {MISTAKES[times][0]}" if times else ""
        yield f"{' and '.join(layouts)}: {relation}{ratio}"


def with_table(page: str) -> str:
    """A page with a new table between its marks; the page itself without marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text()}\n\n{END}{after}" if mark else page
