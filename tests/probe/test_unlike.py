"""probe says what differs by design: it is no fault of the script. SyncBatchNorm, which torch has
for GPUs only, normalises over the rows of all ranks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from harness.rank.probe.findings.unlike import (
    BASELINE,
    SCHEDULE,
    objects_unlike_by_design,
    unlike_by_design,
)
from harness.training.probe.layouts import ACCUMULATION, RANKS, Settings
from tests.probe.probing import (
    BEGIN,
    GIVEN,
    SCRIPTS,
    Probing,
    first_broken,
    layout,
    refused,
    require_right,
    with_bug,
)

MASKED = """
class Masked(nn.Module):
    def forward(self, x):
        return x * (torch.rand(x.shape[:2], device=x.device) < 0.5)[..., None]


model"""


class AcceleratedScheduler:
    """Stands in for accelerate's."""

    def __init__(self, split_batches: bool, step_with_optimizer: bool = True) -> None:
        self.split_batches, self.step_with_optimizer = split_batches, step_with_optimizer


def test_a_schedule_that_accelerate_steps_once_for_each_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "accelerate.scheduler", raising=False)
    assert objects_unlike_by_design() == []
    module = SimpleNamespace(AcceleratedScheduler=AcceleratedScheduler)
    monkeypatch.setitem(sys.modules, "accelerate.scheduler", module)
    assert objects_unlike_by_design() == []
    schedulers = [AcceleratedScheduler(True), AcceleratedScheduler(False, False)]
    assert objects_unlike_by_design() == []
    schedulers.append(AcceleratedScheduler(False))
    assert objects_unlike_by_design() == [SCHEDULE]


def test_a_norm_over_the_batch_is_named_unless_it_is_frozen() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    (line,) = unlike_by_design(model)
    assert line.startswith("BatchNorm1d (0) normalises over the micro-batch of a rank")
    assert unlike_by_design(model.eval()) == []
    model.append(type("FrozenBatchNorm2d", (torch.nn.Identity,), {})())  # as torchvision's
    assert len(unlike_by_design(model.train())) == 1
    assert unlike_by_design(model[1]) == []


class KTOTrainer:
    """Stands in for trl's."""


def test_a_baseline_of_the_micro_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(KTOTrainer=KTOTrainer)
    monkeypatch.setitem(sys.modules, "trl.trainer.kto_trainer", module)
    assert objects_unlike_by_design() == []
    trainer = KTOTrainer()
    assert objects_unlike_by_design() == [BASELINE]
    del trainer


DRAWN_LOSS = """
class Negatives(nn.Module):
    def forward(self, logits):
        return logits * (torch.rand_like(logits) < 0.5)


negatives = Negatives()
accum, batches"""


@pytest.mark.slow
@pytest.mark.launch
def test_a_loss_that_draws_has_no_answer(probing: Probing) -> None:
    text = (SCRIPTS / "ddp.py").read_text().replace("\naccum, batches", DRAWN_LOSS, 1)
    text = text.replace(
        "options.dataclass else output\n", "options.dataclass else negatives(output)\n"
    )
    text = text.replace("\nsampler =", "\ntorch.manual_seed(rank)\nsampler =", 1)
    settings = Settings(layouts=("ranks",))
    answers = probing(text, "--batch-size {rows}", settings)
    assert layout(answers, "ranks").no_answer.startswith("the model draws random numbers itself")


@pytest.mark.slow
@pytest.mark.launch
def test_a_model_that_draws_masks_has_no_answer_unless_its_ranks_have_gradients_of_their_own(
    probing: Probing,
) -> None:
    text = (SCRIPTS / "ddp.py").read_text()
    text = text.replace("\nmodel", MASKED, 1).replace("nn.Dropout(options.dropout)", "Masked()")
    text = text.replace("\nsampler =", "\ntorch.manual_seed(rank)\nsampler =", 1)
    settings = Settings(layouts=("ranks",))
    answers = probing(text, GIVEN, settings)
    assert layout(answers, "ranks").no_answer.startswith("the model draws random numbers itself")
    answers = probing(text, with_bug("no all-reduce"), settings)
    assert first_broken(answers)["ranks"][0] == "gradient"


EQUAL_ROWS = (
    BEGIN
    + """
size = int(sys.argv[1])
model = DDP(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
rows = torch.randn(1, 8).expand(size, 8).contiguous()
for _ in range(4):
    embedded = nn.functional.normalize(model(rows), dim=-1)
    cross_entropy(10 * embedded @ embedded.T, torch.arange(size)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


@pytest.mark.slow
@pytest.mark.launch
def test_gradients_that_are_only_rounding_give_no_answer(probing: Probing) -> None:
    """With equal rows, the gradient of a contrastive loss is only rounding, in every layout."""
    answers = probing(EQUAL_ROWS, "{rows}", Settings(layouts=("ranks",)))
    assert layout(answers, "ranks").no_answer.startswith("hardly a gradient of the reference")
    assert not any("times as fast" in note for note in answers.notes)


DEAD_AND_FROZEN = """
class DeadAndFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.dead = nn.Linear(VOCABULARY, VOCABULARY)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.quantized = nn.Parameter(torch.ones(3, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return x + torch.relu(self.dead(x) - 1000)


model.append(DeadAndFrozen())


@dataclass"""


@pytest.mark.slow
@pytest.mark.launch
def test_a_dead_layer_is_not_tested_and_frozen_whole_numbers_do_no_harm(probing: Probing) -> None:
    """A dead layer has the gradient 0 in all layouts, whatever they do with gradients."""
    text = (SCRIPTS / "ddp.py").read_text().replace("\n@dataclass", DEAD_AND_FROZEN, 1)
    settings = Settings(layouts=("ranks",))
    answers = probing(text, "--batch-size {rows}", settings)
    require_right(answers)
    dead = "2 parameters whose gradient is always 0: 5.dead.weight, 5.dead.bias"
    assert dead in answers.not_tested


NORMS = (
    BEGIN.replace('"gloo"', '"nccl"')
    + """
torch.cuda.set_device(rank)
data, labels = torch.randn(96, 3, 4, 4), torch.randn(96, 1)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 8), nn.BatchNorm1d(8),
    nn.Tanh(), nn.Linear(8, 1),
).cuda()
if sys.argv[3] == "synchronized":
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
run = DDP(model, device_ids=[rank])
rows, k = map(int, sys.argv[1:3])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    optimizer.zero_grad()
    for micro in range(k):
        start = ((step * k + micro) * world + rank) * rows
        x, y = data[start :][:rows].cuda(), labels[start :][:rows].cuda()
        (mse_loss(run(x), y) / k).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(data[:4])
    model.train()
"""
)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "layouts", "broken", "text"),
    [
        (
            "synchronized",  # that of all rows
            (RANKS, ACCUMULATION),
            ACCUMULATION,
            "over the micro-batches of all ranks (--layouts",
        ),
        ("alone", (RANKS,), RANKS, "over the micro-batch of a rank"),
    ],
)
def test_a_norm_over_the_rows_of_a_micro_batch_is_told(
    probing: Probing, how: str, layouts: tuple[str, ...], broken: str, text: str
) -> None:
    answers = probing(NORMS, f"{{rows}} {{k}} {how}", Settings(layouts=layouts))
    assert not refused(answers)
    assert first_broken(answers).keys() == {broken}
    (note,) = [note for note in answers.notes if "normalises" in note]
    assert text in note
