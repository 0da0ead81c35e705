"""The layouts ``compile`` and ``checkpointing``: another mode, and dropout."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.rank.probe.modes import NO_SWITCH
from harness.run.server_pool import Pool
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.layouts import (
    ACCUMULATION,
    BOTH,
    CHECKPOINTING,
    COMPILE,
    MODES,
    RANKS,
    Layout,
    Settings,
)
from harness.training.probe.modes import COMPILED_DROPOUT, OWN_DRAWS, WITH_DROPOUT
from harness.training.probe.notes import NO_DROPOUT
from harness.training.probe.probe_report import as_json, text
from harness.training.probe.prober import Prober
from harness.training.probe.target import target
from tests.overlays import lent_release
from tests.probe.probing import BEGIN, Probing, first_broken, layout, refused, require_right

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
from torch.utils.checkpoint import checkpoint

data = torch.randn(96, 16)


class Block(nn.Module):
    how, recomputes = {"use_reentrant": False}, True

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(16, 16), nn.Dropout(0.3)

    def inner(self, x):
        return x + self.drop(torch.tanh(self.layer(x)))

    def forward(self, x):
        return checkpoint(self.inner, x, **self.how) if self.recomputes else self.inner(x)

    def gradient_checkpointing_enable(self):
        self.recomputes = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = nn.ModuleList([Block(), Block(), Block()]), nn.Linear(16, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


model = Model()
run = DDP(model)
HOW
optimizer, rows = torch.optim.AdamW(model.parameters(), lr=1e-2), int(sys.argv[1])
for step in range(8):
    start = (step * world + rank) * rows
    x, y = data[start:][:rows], labels[start:][:rows]
    optimizer.zero_grad()
    mse_loss(run(x), y).backward()
    optimizer.step()
"""
)

FORGETFUL = 'Block.how = {"use_reentrant": False, "preserve_rng_state": False}'
REENTRANT = 'Block.how = {"use_reentrant": True}; data.requires_grad_()'
OWN_MASK = (
    "Block.inner = lambda self, x: x + torch.tanh(self.layer(x)) * (torch.rand_like(x) > 0.3)"
)
SMALL = "Block.inner = lambda self, x: x + 1e-3 * self.drop(torch.tanh(self.layer(x)))"
PLAIN = "Block.recomputes = False"
WRAPPED = """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
apply_activation_checkpointing(model, check_fn=lambda part: isinstance(part, Block))
"""
COMPOSABLE = """
from torch.distributed._composable import checkpoint as recomputed
for block in model.blocks:
    recomputed(block)
"""
DEEPSPEEDS = (
    "deepspeed.checkpointing.checkpoint",
    "deepspeed.runtime.activation_checkpointing.checkpointing.non_reentrant_checkpoint",
)
DEEPSPEED = """
import deepspeed
data.requires_grad_()
Block.forward = lambda self, x: {}(self.inner, x)
"""
TWICE = """
def inner(self, x):  # the second call of a step has half of the gradient
    self.is_second = not getattr(self, "is_second", True)
    output = torch.tanh(self.layer(x))
    return x + (output + output.detach()) / 2 if self.is_second else x + output
Block.inner = inner
"""
UNLIKE = """
Model.is_gradient_checkpointing = property(lambda self: Block.recomputes)
Model.disable_gradient_checkpointing = lambda self: setattr(Block, "recomputes", False)
Model.enable_gradient_checkpointing = lambda self: setattr(Block, "recomputes", True)
def forward(self, x):
    if self.recomputes:  # this branch forgets x
        return checkpoint(self.inner, x, use_reentrant=False)
    return self.inner(x) + x
Block.forward = forward
"""
SWITCHED = "model.gradient_checkpointing_enable = lambda: setattr(Block, 'recomputes', True)"
AOT = 'backend="aot_eager"'
EAGER = f"run = torch.compile(run, {AOT})"
OF_DROPOUT = f"""
{PLAIN}
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

def forward_of(graph, inputs):  # of a compiler that does something wrong if there is dropout
    global drops
    names = " ".join(str(node.target) for node in graph.graph.nodes)
    drops = "dropout" in names or "bernoulli" in names
    return make_boxed_func(lambda *given: (torch.rand(SHIFT if drops else 0), graph(*given))[1])

def backward_of(graph, inputs):
    factor = FACTOR if drops else 1
    return make_boxed_func(lambda *given: [x if x is None else x * factor for x in graph(*given)])

wrong = aot_autograd(fw_compiler=forward_of, bw_compiler=backward_of)
run = torch.compile(run, backend=wrong)
"""
HALVED = OF_DROPOUT.replace("FACTOR", "0.5").replace("SHIFT", "0")
SHIFTED = OF_DROPOUT.replace("FACTOR", "1").replace("SHIFT", "3")
AUTOCAST = """
in_fp32 = run
def run(x):
    with torch.autocast("cpu", torch.bfloat16):
        return in_fp32(x).float()
"""
DETACHED = """
called = run
def run(x):
    output = called(x)
    output.detach()
    return output
"""
DEEP = """
import torch._functorch.config
torch._functorch.config.activation_memory_budget = 0.1
layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.5)) for _ in range(4)]
model, labels = nn.Sequential(*layers, nn.Linear(16, 1)), torch.ones(96, 1)
run = torch.compile(DDP(model), backend="aot_eager")
"""


COMPILES = f"{PLAIN}; {EAGER}"
ALWAYS_HALVED = HALVED.replace("if drops else 1", "")


def probed(probing: Probing, how: str, *layouts: str) -> Answers:
    return probing(SCRIPT.replace("HOW", how), "{rows}", Settings(layouts=layouts, where=True))


def modes_of(answers: Answers) -> set[str]:
    return {one.layout.kind for one in answers.layouts} & set(MODES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "modes", "relation"),
    [
        ("", {CHECKPOINTING}, ""),
        (FORGETFUL, {CHECKPOINTING}, WITH_DROPOUT),
        (COMPILES, {COMPILE}, ""),
        (f"{PLAIN}; run = DDP(torch.compile(model, {AOT}, fullgraph=True))", {COMPILE}, ""),
        (f"{PLAIN}; model.compile({AOT})", {COMPILE}, ""),
        (f"{PLAIN}; Block.inner = torch.compile(Block.inner, {AOT})", {COMPILE}, ""),
        (HALVED, {COMPILE}, WITH_DROPOUT),
        (ALWAYS_HALVED, {COMPILE}, "gradient"),
    ],
)
def test_a_script_that_compiles_or_recomputes_is_run_without_that_too(
    probing: Probing, how: str, modes: set[str], relation: str
) -> None:
    answers = probed(probing, how)
    assert modes_of(answers) == modes
    (mode,) = modes
    assert first_broken(answers) == ({mode: (relation, "")} if relation else {})
    assert layout(answers, mode).layout.why


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        PLAIN,
        f"{PLAIN}; other = torch.compile(run)",  # and never called
        f"{PLAIN}; run = torch.compile(run, disable=True)",
        f"{PLAIN}; torch.no_grad()(checkpoint)(run, data[:2], use_reentrant=False)",
    ],
)
def test_a_script_that_does_neither_has_the_usual_layouts(probing: Probing, how: str) -> None:
    answers = probed(probing, how)
    assert [one.layout.kind for one in answers.layouts] == [RANKS, ACCUMULATION, BOTH]
    assert NO_DROPOUT in answers.not_tested


@pytest.mark.slow
@pytest.mark.parametrize("how", [FORGETFUL, HALVED])
def test_layouts_that_the_user_names_are_all_that_runs(probing: Probing, how: str) -> None:
    answers = probed(probing, how, RANKS)
    assert [one.layout.kind for one in answers.layouts] == [RANKS]
    assert first_broken(answers) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["run = torch.compile(run)", "inner = run; run = torch.compile(lambda x: 1 * inner(x))"]
)
def test_a_mode_without_an_answer_that_nobody_asked_for_is_not_tested(
    probing: Probing, how: str
) -> None:
    answers = probed(probing, f"{PLAIN}; {OWN_MASK}; {how}")
    assert modes_of(answers) == set()
    (line,) = (line for line in answers.not_tested if "torch.compile" in line)
    assert line == f"with and without torch.compile: {OWN_DRAWS}"


def test_a_report_says_why_a_mode_was_run() -> None:
    answers = Answers("", [Compared(Layout("eagerly", why="the script compiles"))])
    answers.layouts[0].with_dropout = True
    why = "the script compiles; one step had dropout"
    assert f"    run because {why}" in text(answers, 1.0)
    assert as_json(answers, 1.0)["layouts"][0]["why"] == why
    assert as_json(Answers("", [Compared(Layout("2 ranks"))]), 1.0)["layouts"][0]["why"] is None


OFF, ON = "without checkpointing", "with checkpointing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how", "name", "relation"),
    [
        (CHECKPOINTING, "", OFF, ""),
        (CHECKPOINTING, REENTRANT, OFF, ""),
        (CHECKPOINTING, f"{PLAIN}{WRAPPED}", OFF, ""),
        (CHECKPOINTING, f"{SMALL}\n{AUTOCAST}", OFF, ""),
        (CHECKPOINTING, f"{PLAIN}; {SWITCHED}", ON, ""),
        (CHECKPOINTING, OWN_MASK, OFF, ""),  # as those of dropout
        (COMPILE, "", "compiled", ""),
        (COMPILE, PLAIN, "compiled", ""),
        (COMPILE, f"{PLAIN}; run = torch.compile(run, disable=True)", "compiled", ""),
        (COMPILE, COMPILES, "without torch.compile", ""),
        (CHECKPOINTING, f"{OWN_MASK}; {FORGETFUL}", OFF, WITH_DROPOUT),
        # FLUX of diffusers 0.34.0 gave the blocks no mask in the branch with recomputation.
        (CHECKPOINTING, UNLIKE, OFF, "gradient"),
        (CHECKPOINTING, f"{PLAIN}{UNLIKE}", ON, "gradient"),
        # torch 2.13.0 draws other masks in the backward, with a small budget for activations. The
        # whole gradient hides it: that of the last bias, which is right, is far larger.
        (COMPILE, DEEP, "without torch.compile", WITH_DROPOUT),
    ],
)
def test_another_gradient_of_a_mode_is_found_and_right_masks_and_compilers_are_right(
    probing: Probing, kind: str, how: str, name: str, relation: str
) -> None:
    answers = probed(probing, how, kind)
    assert not refused(answers)
    broken = {mode: broken for mode, (broken, _) in first_broken(answers).items()}
    assert broken == ({kind: relation} if relation else {})
    assert layout(answers, kind).layout.name == name


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        FORGETFUL,
        f"{SMALL}; {FORGETFUL}",
        f"{SMALL}; {FORGETFUL}\n{AUTOCAST}",
        f"{PLAIN}; {FORGETFUL}; {SWITCHED}",
    ],
)
def test_a_recomputation_that_draws_other_masks_is_found(probing: Probing, how: str) -> None:
    answers = probed(probing, how, CHECKPOINTING)
    assert first_broken(answers) == {CHECKPOINTING: (WITH_DROPOUT, "")}
    assert "(preserve_rng_state)" in layout(answers, CHECKPOINTING).broken[0].text
    assert answers.where is not None
    assert answers.where.stage == "backward"


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [f"{PLAIN}{COMPOSABLE}", *map(DEEPSPEED.format, DEEPSPEEDS)],
    ids=["composable", "reentrant", "not reentrant"],
)
@pytest.mark.parametrize(("fault", "broken"), [("", set()), (TWICE, {CHECKPOINTING})])
def test_what_torch_composes_and_what_deepspeed_recomputes_is_run_without_that_too(
    pool: Pool, tmp_path: Path, how: str, fault: str, broken: set[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("HOW", f"{fault}\n{how}"))
    with lent_release("tied_grad_reduce", "0.19.8") as overlay:
        prober = Prober(pool, site=overlay.site)
        answers = prober.probe(target([str(script), "{rows}"]), Settings(where=True))
    assert modes_of(answers) == {CHECKPOINTING}
    assert not layout(answers, CHECKPOINTING).no_answer
    assert set(first_broken(answers)) == broken


@pytest.mark.slow
def test_a_model_that_cannot_recompute_has_no_answer(probing: Probing) -> None:
    (why,) = refused(probed(probing, PLAIN, CHECKPOINTING))
    assert NO_SWITCH in why


@pytest.mark.slow
@pytest.mark.parametrize("how", [f"{PLAIN}; {EAGER}\n{AUTOCAST}", f"{SHIFTED}{DETACHED}"])
def test_compiled_code_with_dropout_is_not_tested_where_the_loss_has_no_slope(
    probing: Probing, how: str
) -> None:
    answers = probed(probing, how, COMPILE)
    require_right(answers)
    assert COMPILED_DROPOUT in answers.not_tested


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "broken"), [(1, {}), (0.1, {COMPILE: (WITH_DROPOUT, "")})])
def test_what_is_compiled_with_dropout_is_not_that_without_it(
    probing: Probing, budget: float, broken: dict[str, tuple[str, str]]
) -> None:
    """Torch's cache of graphs gave the runs with dropout the graph of those without it."""
    loop = f"--batch-size {{rows}} --compile --dropout 0.5 --memory-budget {budget}"
    assert first_broken(probing("ddp.py", loop, Settings(layouts=(COMPILE,)))) == broken
