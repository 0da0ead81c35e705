"""Train with ignite and 4 accumulated micro-batches: which loss does the trainer report?

Needs torch and pytorch-ignite, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import ignite
import torch
from ignite.engine import Events, create_supervised_trainer

torch.manual_seed(0)
print("pytorch-ignite", ignite.__version__)
has_bug = False
for count in (1, 4):
    model = torch.nn.Linear(3, 1)
    loss_of = torch.nn.functional.mse_loss
    batches = [(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(4)]
    with torch.no_grad():
        losses = [float(loss_of(model(x), y)) for x, y in batches]
    still = torch.optim.SGD(model.parameters(), lr=0.0)  # the weights stay as they are
    trainer = create_supervised_trainer(model, still, loss_of, gradient_accumulation_steps=count)
    outputs: list[float] = []

    def completed(engine: Any, log: list[float] = outputs) -> None:
        log.append(engine.state.output)

    trainer.add_event_handler(Events.ITERATION_COMPLETED, completed)
    trainer.run(batches, max_epochs=1)
    print(f"{count} accumulated: reported", ", ".join(f"{loss:.4f}" for loss in outputs))
    print(f"{count} accumulated: right   ", ", ".join(f"{loss:.4f}" for loss in losses))
    has_bug |= any(abs(a - b) > 1e-4 for a, b in zip(outputs, losses, strict=True))
print("WRONG: the reported loss is a fraction of the right one" if has_bug else "right: both agree")
raise SystemExit(3 if has_bug else 0)
