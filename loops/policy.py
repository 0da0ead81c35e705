"""Policy gradients with DDP and gradient accumulation: completions are drawn from the model itself,
and rewarded.

GRPO as its paper and trl have it, REINFORCE with the other completions of a prompt as the baseline,
and PPO's clipped ratio with two steps for each batch. ``--bug`` puts one mistake into it.
"""

import argparse
import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--objective", choices=("grpo", "reinforce", "ppo"), default="grpo")
parser.add_argument("--lengths", action="store_true", help="completions of unlike lengths")
parser.add_argument("--beta", type=float, default=0.0, help="of the divergence from the start")
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--amp", default="", help="the type of autocast")
parser.add_argument("--bug", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(options.seed)
rank, world, bug = dist.get_rank(), dist.get_world_size(), options.bug

VOCABULARY, PROMPT, COMPLETION, GROUP = 40, 4, 6, 4
prompts = torch.randint(1, VOCABULARY, (144, PROMPT))
data = TensorDataset(prompts, torch.arange(len(prompts)))


class Policy(nn.Module):
    """Each token's logits depend on the token and on the mean of the tokens before it."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(VOCABULARY, 32), nn.Linear(64, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, VOCABULARY)

    def forward(self, ids):
        x = self.table(ids)
        mean = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.head(self.norm(self.mix(torch.cat([x, mean], -1)).tanh()))


model = Policy()
start = copy.deepcopy(model).eval().requires_grad_(False)
trained = DDP(model)
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
amp = {"device_type": "cpu", "dtype": getattr(torch, options.amp or "bfloat16")}


def log_probabilities(policy, ids):
    """The log-probabilities of the completions' tokens."""
    with torch.autocast(**amp, enabled=bool(options.amp)):
        logits = policy(ids)
    chosen = logits[:, PROMPT - 1 : -1].float().log_softmax(-1)
    return chosen.gather(-1, ids[:, PROMPT:, None]).squeeze(-1)


@torch.no_grad()
def rollout(prompts, numbers, step):
    """Completions of each prompt, and their advantages over the others of the same prompt."""
    ids = prompts.repeat_interleave(GROUP, 0)
    drawn = torch.stack(
        [
            torch.rand(GROUP, COMPLETION, generator=torch.Generator().manual_seed(seed))
            for seed in (numbers * 1000 + step).tolist()
        ]
    ).flatten(0, 1)
    for place in range(COMPLETION):
        shares = model(ids)[:, -1].double().softmax(-1).cumsum(-1)
        token = (shares < drawn[:, place, None].double()).sum(-1).clamp(max=VOCABULARY - 1)
        ids = torch.cat([ids, token[:, None]], 1)
    rewards = ((ids[:, PROMPT:] % 2) * counted(ids)).sum(-1).view(-1, GROUP)
    mean = rewards.mean(1, keepdim=True)
    if options.objective == "grpo":
        advantages = (rewards - mean) / (rewards.std(1, keepdim=True) + 1e-4)
    else:
        advantages = (rewards - mean) * GROUP / (GROUP - 1)
    return ids, advantages.flatten()[:, None]


def loss_of(ids, advantages, old):
    logs = log_probabilities(trained, ids)
    if options.objective == "reinforce":
        gain = advantages * logs
    else:
        ratio = torch.exp(logs - (logs.detach() if old is None else old))
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    if options.beta:
        with torch.no_grad():
            before = log_probabilities(start, ids)
        gain = gain - options.beta * (torch.exp(before - logs) - (before - logs) - 1)
    return -(gain * counted(ids)).sum()


def counted(ids):
    """A mask of the tokens that count: the first token of a completion decides how many."""
    length = COMPLETION - ids[:, PROMPT, None] % 4 if options.lengths else COMPLETION
    return (torch.arange(COMPLETION) < length).float().expand(len(ids), -1)


accum = options.accum
loader = DataLoader(data, options.batch_size, sampler=DistributedSampler(data, seed=options.seed))
batches = list(loader)
for step in range(len(batches) // accum):
    drawn = [rollout(*batch, step) for batch in batches[step * accum : (step + 1) * accum]]
    tokens = sum(counted(ids).sum() for ids, _ in drawn)
    dist.all_reduce(tokens)
    old = [None] * accum
    if options.objective == "ppo":
        with torch.no_grad():
            old = [log_probabilities(model, ids) for ids, _ in drawn]
    for _ in range(2 if options.objective == "ppo" else 1):
        for number, (ids, advantages) in enumerate(drawn):
            is_last = number == accum - 1
            with contextlib.nullcontext() if is_last else trained.no_sync():
                loss = loss_of(ids, advantages, old[number])
                loss = loss * world / tokens
                loss = loss * accum if bug == "never divided by k" else loss
                (loss * world if bug == "summed over ranks" else loss).backward()
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
