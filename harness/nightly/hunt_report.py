"""What a hunt found, as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from harness.nightly.hunt import Finding, Hunted
from harness.probe.signatures import Shown
from harness.system.errors import ExitCode
from harness.system.text import markdown, markdown_table


def exit_code(found: Sequence[Hunted]) -> int:
    """1 if something broke that the catalogue does not know, otherwise 3 if a loop gave no answer,
    or was left out."""
    findings = [one for hunted in found for one in hunted.findings]
    if any(not one.known for one in findings):
        return ExitCode.NOT_AS_EXPECTED
    unclear = any(hunted.unclear or hunted.left or not hunted.probed for hunted in found)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def text(hunted: Hunted) -> Iterator[str]:
    """The lines about a stack."""
    releases = ", ".join(f"{name} {version}" for name, version in hunted.releases.items())
    left = f", {hunted.left} left out" if hunted.left else ""
    yield (
        f"{hunted.stack} ({releases}): {hunted.probed} settings probed{left} in "
        f"{hunted.seconds:.0f} s"
    )
    for one in hunted.findings:
        known = f"known: {', '.join(one.known)}" if one.known else "NOT KNOWN"
        yield f"  {known}; since {one.since}; in {one.seen} settings, the simplest {one.simplest}"
        yield from (f"    {_shown(each)}" for each in one.shown)
    for name, why in hunted.unclear.items():
        yield f"  no answer: {name}: {why}"
    if hunted.probed and not hunted.findings and not hunted.unclear:
        yield "  all as the reference"


def _shown(one: Shown) -> str:
    ratio = (
        f" {one.ratio:.4g} times" + (f" ({one.times})" if one.times else "") if one.ratio else ""
    )
    return f"{one.layout or 'note'}: {one.relation}{ratio}"


def markdown_page(day: str, found: Sequence[Hunted]) -> str:
    """The findings of a day as a table, and what was right."""
    columns = ["releases", "what breaks", "since", "known as", "probed with"]
    rows = [_row(one) for hunted in found for one in hunted.findings]
    probed = sum(hunted.probed for hunted in found)
    silent = [
        f"{hunted.stack}: `{name}`: {markdown(why)}"
        for hunted in found
        for name, why in hunted.unclear.items()
    ]
    lines = [f"## The newest releases of {day}", f"{probed} settings were probed."]
    lines += [markdown_table(columns, rows)] if rows else ["All were as the reference."]
    lines += ["No answer:\n\n" + "\n".join(f"- {line}" for line in silent)] if silent else []
    return "\n\n".join(lines) + "\n"


def _row(one: Finding) -> list[str]:
    releases = ", ".join(f"{name} {version}" for name, version in one.releases.items())
    what = "<br>".join(markdown(_shown(each)) for each in one.shown)
    known = ", ".join(f"`{name}`" for name in one.known) or "not known"
    return [releases, what, one.since, known, f"`{one.simplest}`"]


def as_json(day: str, found: Sequence[Hunted]) -> dict[str, Any]:
    return {"day": day, "stacks": [asdict(hunted) for hunted in found]}
