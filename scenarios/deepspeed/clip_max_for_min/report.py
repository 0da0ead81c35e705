"""Clip gradients of the norms 10 and 0.1 to 1: is the large one cut, and the small one kept?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29600"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(1, 1, bias=False)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
config = {"train_batch_size": 1, "gradient_clipping": 1.0}
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
print("deepspeed", deepspeed.__version__)
bug = False
for norm in (10.0, 0.1):
    before = float(model.weight)
    engine.backward(engine(torch.tensor([[norm]])).sum())  # its gradient is the input
    engine.step()
    step, goal = before - float(model.weight), min(norm, 1.0)
    bug |= abs(step - goal) > 0.01
    print(f"gradient of norm {norm:g}, learning rate 1: the step is {step:.4f}, right is {goal:g}")
print("WRONG: the small one grows, the large one stays" if bug else "right: only one is cut")
raise SystemExit(3 if bug else 0)
