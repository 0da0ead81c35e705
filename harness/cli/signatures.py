"""record what probe shows of the bugs of the catalogue, with their buggy and fixed releases

    python -m harness signatures
    python -m harness signatures trainer_gas_twice heads_gas_ranks
    python -m harness signatures fla_gate_linear        # on a machine with a GPU: a loop of kernels

Each scenario whose probe.json has a loop is probed with the packages of its overlays. What breaks
first is written to that file; the table in docs/probe_results.md is made from all of them.
"""

from __future__ import annotations

from datetime import date

from harness.bugs import catalog, pins
from harness.cli import Arguments
from harness.releases import overlay, resolution
from harness.run.server_pool import Pool
from harness.system.errors import ExitCode, Inconclusive, UserError
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder, why_no_gpus
from harness.system.terminal import Progress, terminal
from harness.training.probe import signatures
from harness.training.probe.prober import Loop, Prober, leased_gpus
from harness.training.probe.signatures import ProbeResult

VARIANTS = ("buggy", "fixed")


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="*", help="which ones (default: all that have a loop)")
    options = parser.parse_args(arguments)
    refuse_without_torch("signatures")
    console, codes = terminal(), []
    with Pool() as pool, Progress(console) as progress:
        for name, loop in _loops(options.scenario):
            progress.say(f"probing the loop of {name}")
            by_variant = {variant: _probed(name, variant, loop, pool) for variant in VARIANTS}
            signatures.write(catalog.folder(name), by_variant)
            line, code = _judged(name)
            console.print(line)
            codes.append(code)
    return ExitCode.worst(codes)


def _loops(names: list[str]) -> list[tuple[str, Loop]]:
    """The named scenarios, or all, that have a loop."""
    loops = []
    for name in names or catalog.sound():
        if name not in catalog.names():
            raise UserError(catalog.unknown_scenario(name))
        signature = signatures.read(catalog.folder(name))
        loop = signature.loop if signature is not None else None
        if loop is not None and not (why := loop.on_gpus and why_no_gpus(loop.on_gpus)):
            loops.append((name, loop))
        elif names:
            raise UserError(f"{name}: {why if loop else f'no loop in its {signatures.FILE}'}")
    return loops


def _probed(name: str, variant: str, loop: Loop, pool: Pool) -> ProbeResult:
    """What probe shows with the releases of a variant."""
    import torch

    scenario, cache = catalog.scenario(name), cache_folder()
    stack = resolution.stack(scenario, pins.complete(scenario, scenario.pins_of(variant)), cache)
    defects = scenario.variant(variant).defects
    with overlay.borrow(stack, defects, cache) as borrowed, leased_gpus(loop.on_gpus) as gpus:
        versions, today = str(torch.__version__), date.today().isoformat()
        try:
            answers = Prober(pool, borrowed.site, gpus=gpus)(loop)
        except Inconclusive as error:
            why = str(error).partition("\n")[0]
            return ProbeResult(stack.pins, versions, today, {}, no_answer=why)
        return signatures.recorded(answers, stack.pins, versions, today)


def _judged(name: str) -> tuple[str, int]:
    """A line about a scenario, and an exit code: 1 for a false alarm, 3 without an answer."""
    signature = signatures.read(catalog.folder(name))
    if signature is None:
        return f"{name}: nothing was recorded", ExitCode.INCONCLUSIVE
    if broken := ", ".join(sign.relation for sign in signature.false_alarms):
        return f"{name}: the fixed release breaks a relation: {broken}", ExitCode.NOT_AS_EXPECTED
    if signature.silent:
        return f"{name}: no answer: {signature.silent}", ExitCode.INCONCLUSIVE
    shown_relations = ", ".join(
        f"{sign.layout or 'note'}: {sign.relation}" + (f" x {sign.times}" if sign.times else "")
        for sign in signature.signs
    )
    return f"{name}: {shown_relations or 'not found'}", ExitCode.AS_EXPECTED
