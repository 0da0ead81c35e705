"""Scripts that compile: hooks stay outside of compiled code and do not change it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.system.files import ROOT
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import BEGIN, RESUMED, SAVE, Probing, require_right

SCRIPT = (
    BEGIN
    + """


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.3)

    def forward(self, x):
        x = x + self.drop(nn.functional.dropout(self.layer(x), 0.1, self.training))
        return x - (x * x).detach() + 0 * torch.multinomial(x.softmax(-1), 1)


def halved(graph, inputs):
    return lambda *given: [x / 2 if x.is_floating_point() else x for x in graph(*given)]


model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
HOW
rows = int(sys.argv[1])
for step in range(8):
    x = data[(step * world + rank) * rows :][:rows]
    optimizer.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    optimizer.step()
"""
)

DRAWS = " + 0 * torch.multinomial(x.softmax(-1), 1)"
EAGER = 'backend="aot_eager"'
"""The hooks are inlined as with every backend, and nothing is built."""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.by_day(8)
@pytest.mark.parametrize(
    "how",
    [
        f"run = torch.compile(DDP(model), {EAGER})",
        f"run = DDP(torch.compile(model, {EAGER}, fullgraph=True))",
        f"model.compile({EAGER}); run = DDP(model)",
        f"run = DDP(model); model[0].compile({EAGER}); model[1].compile({EAGER})",
        f"inner = DDP(model); run = torch.compile(lambda x: inner(x) * 2, {EAGER})",
        f"ddp = DDP(model); run = torch.compile(lambda m, x: m(x) * 2, {EAGER}); "
        "call, run = run, lambda x: call(ddp, x)",
        f"run = DDP(model); optimizer.step = torch.compile(optimizer.step, {EAGER})",
        f"inner = DDP(model); inner.compile({EAGER}); "
        "run = lambda x: torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)",
    ],
)
def test_a_right_loop_that_compiles_with_dropout_is_right(probing: Probing, how: str) -> None:
    answers = probing(SCRIPT.replace("HOW", how), "{rows}", Settings(layouts=(RANKS,)))
    require_right(answers)
    assert not [note for note in answers.notes if "dropout" not in note]


@pytest.mark.launch
@pytest.mark.slow
def test_what_is_compiled_for_a_cpu_is_right_in_every_layout(probing: Probing) -> None:
    arguments = "--batch-size {rows} --accum {k} --compile --dropout 0.3"
    answers = probing("ddp.py", arguments, Settings(save=SAVE, resume=RESUMED))
    require_right(answers)
    assert answers.notes == []


WARMS_UP = """
import sys, torch
from harness.rank.probe import compiled
torch.version.cuda = "13.0"
compiled.warm_up()
sys.exit("torch._inductor.compile_fx" in sys.modules)
"""


@pytest.mark.slow
def test_a_torch_for_gpus_is_not_warmed_up() -> None:
    """Its compiler starts a thread of the driver: the server could not fork, and each rank would
    warm up by itself, for a minute."""
    subprocess.run([sys.executable, "-c", WARMS_UP], cwd=ROOT, check=True)
