"""Styles of right loops that are rare: each was once taken for a fault."""

from __future__ import annotations

import pytest

from harness.rank.probe.exchange import Step
from harness.training.probe.compare.reference import Reference
from harness.training.probe.layouts import ACCUMULATION, RANKS, Layout, Settings
from harness.training.probe.notes import ON_ALL_RANKS, notes_on_run
from harness.training.probe.runner import Run
from tests.probe.probing import BEGIN, Probing, first_broken, require_right

pytestmark = pytest.mark.launch

STYLE = (
    BEGIN
    + """
from torch.distributed import all_reduce

size, k = map(int, sys.argv[1:])
data, labels = torch.randn(96, 8), torch.randint(0, 4, (96,))
tokens = torch.randint(1, 50, (96, 5))


def net(*sizes):
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*(nn.Sequential(nn.Linear(*two), nn.Tanh()) for two in pairs))


def micro_batches(step):
    rows = torch.arange(step * 12, step * 12 + 12).view(k, world, size)[:, rank]
    return [(data[each], labels[each], tokens[each]) for each in rows]


"""
)

DIVIDED = """
model = net(8, 16, 4)
run = DDP(model) if world > 1 else model
optimizer = torch.optim.SGD(model.parameters(), 0.1, nesterov=True, momentum=0.9)
for step in range(4):
    for x, y, _ in micro_batches(step):
        cross_entropy(run(x), y, reduction="sum").backward()
    for p in model.parameters():
        p.grad /= size * k
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
"""

SEARCH = """
model = net(8, 4)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
for step in range(4):
    parts = micro_batches(step)

    def closure():
        optimizer.zero_grad()
        losses = [cross_entropy(model(x), y) / k for x, y, _ in parts]
        sum(losses).backward()
        for p in model.parameters():
            all_reduce(p.grad)
            p.grad /= world
        loss = sum(losses).detach()
        all_reduce(loss)
        return loss / world

    optimizer.step(closure)
"""

TWO_RATES = """
model = net(8, 16, 4)
run = DDP(model)
optimizers = [
    torch.optim.SGD(model[0].parameters(), 0.02), torch.optim.AdamW(model[1].parameters(), 0.003)
]
for step in range(4):
    for x, y, _ in micro_batches(step):
        (cross_entropy(run(x), y) / k).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.99
        optimizer.zero_grad()
"""

ADVERSARIES = """
G, D = net(8, 16, 8), net(8, 16, 1)
G_run, D_run = DDP(G), DDP(D)
of_G, of_D = (torch.optim.Adam(each.parameters(), 1e-3) for each in (G, D))
for step in range(4):
    of_D.zero_grad()
    for x, _, _ in micro_batches(step):
        fake = G_run(x).detach()
        ((softplus(-D_run(x)) + softplus(D_run(fake))).mean() / k).backward()
    of_D.step()
    of_G.zero_grad()
    for x, _, _ in micro_batches(step):
        (softplus(-D_run(G_run(x))).mean() / k).backward()
    of_G.step()
"""

CRITICS = """
G, D = net(8, 16, 8), net(8, 16, 1)
G_run, D_run = DDP(G), DDP(D)
of_G, of_D = (torch.optim.Adam(each.parameters(), 1e-3) for each in (G, D))
for step in range(8):
    of_D.zero_grad()
    for x, _, _ in micro_batches(step):
        ((D_run(G_run(x)) - D_run(x)).mean() / k).backward()  # G gets gradients, too
    of_D.step()
    if step % 5 == 4:
        of_G.zero_grad()
        for x, _, _ in micro_batches(step):
            (-D_run(G_run(x)).mean() / k).backward()
        of_G.step()
"""

TEACHER_FIRST = """
student, teacher = net(8, 16, 4), net(8, 16, 4)
teacher.load_state_dict(student.state_dict())
teacher.requires_grad_(False)
run = DDP(student)
optimizer = torch.optim.AdamW(student.parameters(), 1e-2)
for step in range(5):
    optimizer.zero_grad()
    for x, _, _ in micro_batches(step):
        target = (teacher(x) / 0.1).softmax(-1)  # in training mode, and with gradients enabled
        (-(target * run(x).log_softmax(-1)).sum(-1).mean() / k).backward()
    optimizer.step()
    with torch.no_grad():
        for mean, p in zip(teacher.parameters(), student.parameters()):
            mean.mul_(0.9).add_(p, alpha=0.1)
"""

NOISE_OF_TRANSFORMED = """
import zlib


class Normalize(nn.Module):  # as torchvision's
    def forward(self, x):
        return (x - 0.5) / 0.5


def noise_of(row):
    generator = torch.Generator().manual_seed(zlib.crc32(row.numpy().tobytes()))
    return torch.randn(row.shape, generator=generator)


transform = nn.Sequential(Normalize(), Normalize())
model = net(8, 16, 8)
run = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(5):
    optimizer.zero_grad()
    for x, _, _ in micro_batches(step):
        x = transform(x)
        noise = torch.stack([noise_of(row) for row in x])
        ((run(x + noise) - noise).square().mean() / k).backward()
    optimizer.step()
"""

GENERATED = """
G, D = net(5, 16, 8), net(8, 16, 1)
G_run, D_run = DDP(G), DDP(D)
of_G, of_D = (torch.optim.Adam(each.parameters(), 1e-3) for each in (G, D))
for step in range(4):
    of_D.zero_grad()
    fakes = []
    for x, _, noise in micro_batches(step):
        (softplus(-D_run(x)).mean() / k).backward()
        fakes.append(G_run(noise.float()))
        (softplus(D_run(fakes[-1].detach())).mean() / k).backward()
    of_D.step()
    of_G.zero_grad()
    for fake in fakes:
        (softplus(-D_run(fake)).mean() / k).backward()
    of_G.step()
"""

TIME_FIRST = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.cells(x)[0][-1])


model = Recurrent()
run = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.003)
for step in range(4):
    for x, y, _ in micro_batches(step):
        (cross_entropy(run(torch.stack([x, -x, x.cos(), x.sin(), x.tanh()])), y) / k).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SPARSE = """
model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), net(8, 16, 4))
run = DDP(model)
optimizers = [
    torch.optim.SparseAdam(model[0].parameters(), 1e-2), torch.optim.Adam(model[1].parameters())
]
for step in range(4):
    for _, y, ids in micro_batches(step):
        (cross_entropy(run(ids), y) / k).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""

OF_ROWS = """
from torch.func import functional_call, grad, vmap

model = net(8, 16, 4)
optimizer = torch.optim.Adam(model.parameters())


def loss(parameters, x, y):
    return cross_entropy(functional_call(model, parameters, (x[None],)), y[None])


of_rows = vmap(grad(loss), (None, 0, 0))
for step in range(4):
    optimizer.zero_grad()
    for x, y, _ in micro_batches(step):
        parts = of_rows({n: p.detach() for n, p in model.named_parameters()}, x, y)
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in parts.values()]).norm(dim=0)
        clipped = (0.5 / norms).clamp(max=1) / 12
        for name, p in model.named_parameters():
            part = torch.einsum("r,r...->...", clipped, parts[name])
            p.grad = part if p.grad is None else p.grad + part
    [all_reduce(p.grad) for p in model.parameters()]
    optimizer.step()
"""

STEPS = """
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
run = DDP(model) if world > 1 else model
for step in range(4):
    before(step)
    for x, y, _ in micro_batches(step):
        (cross_entropy(run(x), y) / k).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SIZE_LEARNT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(8, 16)
        self.head = nn.Linear(self.body(torch.zeros(1, 8)).numel(), 4)

    def forward(self, x):
        return self.head(self.body(x))


model, before = Model(), lambda step: None
print(model(torch.randn(2, 8)).shape)
"""

UNFROZEN = """
model = net(8, 16, 4)
model[0].requires_grad_(False)


def before(step):
    global run
    if step == 2:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-4})
        run = DDP(model) if world > 1 else model
"""

SPECTRAL = """
model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)))
before = lambda step: None
"""


LOOPS = {
    "divided": DIVIDED,
    "search": SEARCH,
    "two rates": TWO_RATES,
    "adversaries": ADVERSARIES,
    "critics": CRITICS,
    "teacher first": TEACHER_FIRST,
    "noise of what a module has transformed": NOISE_OF_TRANSFORMED,
    "generated": GENERATED,
    "time first": TIME_FIRST,
    "sparse": SPARSE,
    "of rows": OF_ROWS,
    "size learnt": SIZE_LEARNT + STEPS,
    "unfrozen": UNFROZEN + STEPS,
}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_rare_style_is_no_fault(probing: Probing, loop: str) -> None:
    settings = Settings(layouts=(RANKS, ACCUMULATION))
    answers = probing(STYLE + loop, "{rows} {k}", settings)
    require_right(answers)
    assert answers.about.startswith("4 steps of 12 rows")
    assert not answers.notes


@pytest.mark.parametrize(("rows", "noted"), [("one", []), ("two", [ON_ALL_RANKS])])
def test_equal_dropout_is_noted_if_the_ranks_have_unlike_rows(rows: str, noted: list[str]) -> None:
    ranks = [[Step(drops=["state"], rows=[[row]])] for row in ("one", rows)]
    assert (
        list(notes_on_run(Run(Layout("2 ranks", RANKS, 2, 1), ranks), Reference([], []))) == noted
    )


@pytest.mark.slow
def test_a_norm_that_iterates_in_each_forward_has_a_note(probing: Probing) -> None:
    settings = Settings(layouts=(RANKS, ACCUMULATION))
    answers = probing(STYLE + SPECTRAL + STEPS, "{rows} {k}", settings)
    assert first_broken(answers).keys() <= {ACCUMULATION}
    assert answers.about.startswith("4 steps of 12 rows")
    assert any("spectral" in note for note in answers.notes)
