"""Reduce the gradients of an embedding that is tied over pipeline stages: is the sum complete?

Needs torch and megatron-core, and no GPU where calls of torch.cuda go to the CPU. The exit code is
3 if the bug is there."""

import torch
from megatron.core import distributed, package_info, parallel_state
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.multiprocessing.spawn import spawn


def reduced(rank: int) -> torch.Tensor:
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29625", rank=rank, world_size=4)
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    model = LanguageModule(TransformerConfig(num_layers=2, hidden_size=4, num_attention_heads=1))
    model.share_embeddings_and_output_weights, parts = True, [torch.empty(0)] * 4
    model.pre_process, model.post_process = rank < 2, rank > 1  # each on two ranks
    if model.pre_process:
        model.embedding = torch.nn.ModuleDict({"word_embeddings": torch.nn.Embedding(4, 4)})
    model.layer = torch.nn.Linear(4, 4, bias=False)
    if model.post_process:
        model.output_layer = torch.nn.Linear(4, 4, bias=False)
    getattr(model, "setup_embeddings_and_output_layer", lambda: None)()  # from 0.6 on
    options = {"overlap_grad_reduce": False, "use_distributed_optimizer": True}
    group, gradient = parallel_state.get_data_parallel_group(), 2 * 10**rank
    ddp = distributed.DistributedDataParallel(model.config, model, group, True, **options)
    (gradient * sum(each.sum() for each in model.parameters())).backward()
    distributed.finalize_model_grads([ddp])
    torch.distributed.all_gather_object(parts, model.shared_embedding_or_output_weight().main_grad)
    return torch.stack(parts)


if __name__ == "__main__":
    spawn(reduced, nprocs=3, join=False, daemon=True)  # ranks 0 to 2
    cells = reduced(3)  # the means: 1 + 10 of the first stage, 100 + 1000 of the last
    print(f"megatron-core {package_info.__version__}:", *(cell.unique().tolist() for cell in cells))
    has_bug = bool((cells.view(2, 2, -1).amax(1) < 1111).any())  # the better of two replicas
    print("WRONG: no replica has all, 1111" if has_bug else "right: one of two replicas has 1111")
    raise SystemExit(3 if has_bug else 0)
