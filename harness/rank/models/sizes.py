"""Small sizes for configurations of transformers, by the name of a setting.

They exceed the limits under test: 40 tokens are more than a window of 16, and each kind of layer
occurs. All sizes fit together: heads times their size is the hidden size, and 2 divides them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TOKENS = 40
"""Tokens in a row: more than two windows."""

TARGETS = 24
"""Tokens in a row of a decoder that has an encoder: more than a window, fewer than TOKENS."""

FIRST, LAST = 8, 100
"""Token ids are drawn from this range, which has no special tokens."""

WINDOW = 16
VOCABULARY = 128
HIDDEN = 32
HEADS = 4
HEAD = HIDDEN // HEADS
LABELS = 4
"""The number of classes of a head that classifies."""

LEAST_LAYERS = 2
MOST_LAYERS = 6
POSITIONS = 128
NO_LONGER = 64
"""The length, in tokens, for which a rotary embedding was trained. Longer rows change it, and the
cache of a shorter row lacks that change."""


def _sizes(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SIZES: Mapping[str, Any] = {
    **_sizes(
        HIDDEN,
        "hidden_size n_embd d_model dim n_embed embed_dim hidden_dim model_dim lru_width "
        "word_embed_proj_dim embedding_size embedding_dim "
        "vision_hidden_size encoder_hidden_size mlp_hidden_size",
    ),
    **_sizes(
        HEADS,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "encoder_attention_heads mamba_n_heads mamba_num_heads linear_num_value_heads "
        "swa_num_attention_heads encoder_num_attention_heads index_n_heads linear_num_heads",
    ),
    **_sizes(
        2,
        "num_key_value_heads num_kv_heads linear_num_key_heads swa_num_key_value_heads "
        "multi_query_group_num global_num_key_value_heads num_global_key_value_heads",
    ),
    **_sizes(
        HEAD,
        "head_dim attention_head_size kv_channels linear_key_head_dim linear_value_head_dim "
        "mamba_d_state state_size ssm_state_size qk_rope_head_dim qk_nope_head_dim v_head_dim "
        "swa_head_dim global_head_dim linear_head_dim index_head_dim hidden_size_per_layer_input",
    ),
    **_sizes(2 * HEAD, "mamba_d_head mamba_head_dim kv_lora_rank q_lora_rank qk_head_dim"),
    **_sizes(2 * HIDDEN, "d_inner mamba_d_ssm"),
    **_sizes(
        48,
        "intermediate_size ffn_dim d_ff n_inner decoder_ffn_dim encoder_ffn_dim "
        "ffn_hidden_size intermediate_dim intermediate_size_mlp dense_intermediate_size",
    ),
    **_sizes(
        16,
        "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
        "expert_dim moe_ffn_hidden_size moe_shared_expert_intermediate_size "
        "shared_intermediate_size",
    ),
    **_sizes(
        8, "num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts"
    ),
    **_sizes(2, "num_experts_per_tok moe_k moe_topk num_experts_per_token moe_top_k"),
    **_sizes(1, "n_shared_experts n_group topk_group mamba_n_groups n_groups num_shared_experts"),
    **_sizes(VOCABULARY, "vocab_size vocab_size_per_layer_input src_vocab_size tgt_vocab_size"),
    **_sizes(VOCABULARY, "entity_vocab_size"),
    **_sizes(HIDDEN, "entity_emb_size"),
    **_sizes(
        POSITIONS,
        "max_position_embeddings n_positions max_seq_len n_ctx max_target_positions seq_length "
        "max_sequence_length context_length",
    ),
    **_sizes(
        WINDOW,
        "sliding_window attention_window attention_window_size attention_chunk_size window_size",
    ),
    **_sizes(VOCABULARY, "pronunciation_vocab_size shape_vocab_size num_hash_buckets"),
    **_sizes(HEAD // 2, "rotary_dim"),
    **_sizes(HIDDEN, "emb_dim hidden_size_global"),
    **_sizes(VOCABULARY, "encoder_hash_byte_group_vocab"),
    "num_codebooks": 1,
    "num_kv_shared_layers": 0,
    "original_max_position_embeddings": NO_LONGER,
}
"""Values of integer settings, in every configuration that has them."""

IMAGE = 32
"""The height and width of an image, in pixels."""

OF_IMAGES: Mapping[str, int] = {
    **SIZES,
    **_sizes(IMAGE, "image_size"),
    **_sizes(HIDDEN, "hidden_sizes embed_dims num_channels_stages neck_hidden_sizes"),
    **_sizes(1, "depths num_blocks"),
}
"""Sizes of a model for images. They also replace each number in a list."""

ALWAYS = ("num_key_value_heads", "head_dim", "num_experts_per_tok")
"""Sizes that are set even if the default is None: some models have only that default."""

LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "encoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
)
"""Settings that count layers."""

KINDS: Mapping[str, Any] = {
    "first_k_dense_replace": 1,
    "full_attention_interval": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "max_window_layers": 1,
    "sliding_window_pattern": 2,
    "global_attn_every_n_layers": 2,
    "use_sliding_window": True,
    "output_router_logits": False,
}
"""Settings that choose the kinds of layers, so that each kind occurs."""

CAUSAL_KINDS: Mapping[str, Any] = {"is_decoder": True, "causal": True}
"""Settings that turn an encoder into a causal language model; only for that head."""

SPECIAL_TOKENS: Mapping[str, int] = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "cls_token_id": 3,
    "sep_token_id": 4,
}

EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8}},
    "dots3_note_text": {
        **_sizes(HEADS, "swa_num_attention_heads swa_num_key_value_heads"),
        **_sizes(2 * HEAD, "swa_q_lora_rank swa_kv_lora_rank swa_head_dim"),
        **_sizes(HEAD, "swa_qk_nope_head_dim swa_v_head_dim"),
    },
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 5, "pad_token_id": 1},
    "esmc": {"num_key_value_heads": HEADS},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "layoutlmv3": {"coordinate_size": HEAD // 2, "shape_size": HEAD},
    "lilt": {"hidden_size": 6 * HEAD, "num_attention_heads": HEADS},  # six coordinates of a box
    "mamba2": {"head_dim": 2 * HEAD, "num_heads": HEADS},
    "neomme": {"head_dim": 2 * HEAD},
    "perceiver": {
        **_sizes(HEADS, "num_self_attention_heads num_cross_attention_heads"),
        **_sizes(HIDDEN, "d_latents qk_channels v_channels"),
        "num_latents": 2 * HEAD,
        "num_self_attends_per_block": LEAST_LAYERS,
        "max_position_embeddings": TOKENS,  # it takes no shorter row
    },
    "qwen4_exp_text": {
        "indexer_n_heads": HEADS,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds": False,
        "local_attn_chunk_length": HEAD,
        "attn_layers": ["local", "local"],  # the other kind draws random numbers
    },
    **{name: {"image_size": 2 * IMAGE, "window_size": 2} for name in ("swin", "donut-swin")},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings that a model needs beyond the rules, by its type."""

INNER: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}}
}
"""Settings of nested configurations, by the type of the outer one and by their names."""

CAUSAL_EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {"xlnet": {"attn_type": "uni"}}
"""Further settings for a causal language model, by its type."""


def kinds(lists: Mapping[str, Sequence[Any]]) -> list[int]:
    """Choose layers so that each kind occurs once, and at least LEAST_LAYERS of them."""
    layers = list(zip(*lists.values(), strict=True))
    examples = list({str(layer): at for at, layer in reversed(list(enumerate(layers)))}.values())
    chosen = sorted(examples)[:MOST_LAYERS]
    others = (at for at in range(len(layers)) if at not in chosen)
    while len(chosen) < LEAST_LAYERS and (filler := next(others, None)) is not None:
        chosen = sorted([*chosen, filler])
    return chosen
