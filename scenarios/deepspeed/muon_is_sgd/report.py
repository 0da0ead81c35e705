"""Train a step with DeepSpeed's Muon and no ZeRO: has the update singular values near the rate?

Needs torch and deepspeed from 0.18 on, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29832"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 8, bias=False)
model.weight.use_muon = True
before = model.weight.detach().clone()
config = {"train_batch_size": 8, "gradient_clipping": 0.0}
config |= {"optimizer": {"type": "Muon", "params": {"lr": 1.0}}}
engine = deepspeed.initialize(
    model=model, model_parameters=list(model.parameters()), config=config
)[0]
rows = 100 * torch.eye(8) + torch.randn(8, 8)
weight = before.clone().requires_grad_()
(gradient,) = torch.autograd.grad((rows @ weight.T).square().mean(), weight)
engine.backward(engine(rows).square().mean())
engine.step()
update = before - model.weight.detach()
values = torch.linalg.svdvals(update)
print(f"deepspeed {deepspeed.__version__}: an update of Muon with a rate of 1 has")
print(f"singular values of {values[-1]:.3g} to {values[0]:.3g}; 0.6 to 1.3 is right")
sgd = torch.allclose(update, gradient, rtol=1e-3)
print("WRONG: the update is the gradient, as that of SGD" if sgd else "right: it is not SGD's")
raise SystemExit(3 if sgd else 0)
