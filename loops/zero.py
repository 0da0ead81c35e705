"""A loop with DeepSpeed, as its documentation teaches it; --stage is ZeRO's."""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--fp16", action="store_true", help="with DeepSpeed's loss scaler")
parser.add_argument("--scale", type=int, default=16, help="the first loss scale, as a power of 2")
parser.add_argument("--fp32-gradients", action="store_true", help="accumulated in fp32")
parser.add_argument("--zero-grad", action="store_true", help="which some releases leave out")
parser.add_argument("--scattered", action="store_true", help="gradients are not contiguous")
parser.add_argument("--offload", action="store_true", help="of the optimizer, to the CPU")
parser.add_argument("--optimizer", choices=("adamw", "sgd", "muon"), default="adamw")
parser.add_argument("--groups", action="store_true", help="of AdamW: two, with other rates")
parser.add_argument("--momentum", type=float, default=0.0, help="of SGD")
parser.add_argument("--warmup", type=int, default=0, help="DeepSpeed's WarmupLR, of so many steps")
parser.add_argument("--by-hand", action="store_true", help="the loop accumulates, not DeepSpeed")
parser.add_argument("--marked", action="store_true", help="by hand, and says which is the last")
parser.add_argument("--weights", default="", help="a folder for weights that it begins with")
loads = ("all", "module", "weights")
about = "at a resume; weights: from a checkpoint that is not the folder's newest"
parser.add_argument("--load", choices=loads, default="all", help=about)
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

torch.manual_seed(options.seed)
data = torch.utils.data.TensorDataset(torch.randn(144, 16), torch.randint(0, 8, (144,)))
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8))
config = {
    "train_micro_batch_size_per_gpu": options.batch_size,
    "gradient_accumulation_steps": 1 if options.by_hand else options.accum,
    "gradient_clipping": options.clip,
    "zero_optimization": {"stage": options.stage},
    "bf16": {"enabled": options.bf16},
    "zero_allow_untested_optimizer": True,  # for SGD
}
if options.scattered:
    config["zero_optimization"]["contiguous_gradients"] = False
if options.fp16:
    config["fp16"] = {"enabled": True, "initial_scale_power": options.scale}
if options.fp32_gradients:
    config["data_types"] = {"grad_accum_dtype": "fp32"}
if options.offload:
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    config["zero_force_ds_cpu_optimizer"] = False
if options.optimizer == "adamw":
    parts = [model[:3], model[3:]] if options.groups else [model]
    groups = [{"params": part.parameters(), "lr": 1e-3 * n} for n, part in enumerate(parts, 1)]
    optimizer = torch.optim.AdamW(groups)
elif options.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=options.momentum)
else:  # DeepSpeed's own, of the matrices alone
    torch.compiler.set_stance("force_eager")  # to compile the iteration takes 5 s on a CPU
    optimizer, muon = None, {"lr": 0.02, "momentum": 0.95}
    config["optimizer"] = {"type": "Muon", "params": muon}
    config["zero_optimization"]["reduce_scatter"] = options.stage < 3  # which it refuses
    for parameter in model.parameters():
        parameter.use_muon = parameter.dim() == 2
if options.load != "all" or optimizer is None:
    schedule = None  # a load of the weights alone leaves it out
elif options.warmup:
    rates = {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3, "warmup_num_steps": options.warmup}
    config["scheduler"] = {"type": "WarmupLR", "params": {**rates, "warmup_type": "linear"}}
    schedule = None
else:
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    model_parameters=list(model.parameters()),
    optimizer=optimizer,
    lr_scheduler=schedule,
    training_data=data,
    config=config,
)
begun = 0
if options.weights:
    # Save other weights, as after a pretraining, and load them over the first ones.
    weights = [parameter.detach().clone() for parameter in engine.module.parameters()]
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        engine.save_checkpoint(options.weights, tag="pretrained")
        for parameter, before in zip(engine.module.parameters(), weights, strict=True):
            parameter.copy_(before)
    only = {"load_module_only": True, "load_optimizer_states": False}
    engine.load_checkpoint(options.weights, "pretrained", **only)
if options.resume:
    only = {
        "all": {},
        "module": {"load_module_only": True},
        "weights": {"tag": "asked", "load_optimizer_states": False},
    }
    _, client = engine.load_checkpoint(options.resume, **only[options.load])
    begun = client["micro_steps"]
for number, (x, y) in enumerate(loader):
    if number < begun:
        continue
    x = x.to(engine.device)
    logits = engine(x.bfloat16() if options.bf16 else x.half() if options.fp16 else x)
    loss = nn.functional.cross_entropy(logits.float(), y.to(engine.device))
    if not options.by_hand:
        engine.backward(loss)
        engine.step()
    else:
        is_last = (number + 1) % options.accum == 0
        if options.marked:
            engine.set_gradient_accumulation_boundary(is_last)
        engine.backward(loss / options.accum)
        if is_last:
            engine.step()
    if options.zero_grad and engine.is_gradient_accumulation_boundary():
        engine.module.zero_grad()
    if options.save and options.load == "weights" and number + 1 == options.accum:
        engine.save_checkpoint(options.save, tag="newest")
    if options.save and number + 1 == options.save_at * options.accum:
        names = {"tag": "asked", "save_latest": False} if options.load == "weights" else {}
        engine.save_checkpoint(options.save, client_state={"micro_steps": number + 1}, **names)
