"""Tiny configurations of transformers' models, made from the defaults of their configuration classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WIDTH = 32
HEADS = 4
HEAD_WIDTH = WIDTH // HEADS
VOCABULARY = 99
FIRST_WORD = 60
"""Token ids below have a special meaning in a tiny configuration."""
IMAGE = 32
LABELS = 3

Rule = tuple[str, Callable[[int], int]]

_DEPTH = r"^n_layers?$|layers$|^depth$|num_layers?$|num_blocks$|_depth$|^num_stages_per$|^layers$|num_block_repeats"
_RULES: tuple[Rule, ...] = (
    (r"vocab_size|vocabulary_size|^vocab_size_per_layer_input$", lambda old: min(old, VOCABULARY)),
    (r"experts_per_tok|moe_topk|^moe_k$|top_k_experts|experts_per_token", lambda old: min(old, 2)),
    (r"num_expert_group|^n_group$|topk_group", lambda old: 1),
    (r"shared_expert(s)?$|n_shared_experts", lambda old: min(old, 1)),
    (r"expert.*(intermediate|hidden|dim|width)", lambda old: min(old, WIDTH)),
    (r"experts$|n_routed", lambda old: min(old, 4)),
    (r"feat_extract_layers|feature_layer|dense_replace|max_window_layers|adapter_layers", lambda old: old),
    (_DEPTH, lambda old: min(old, 2)),
    (r"(key_value|kv|n_kv).*heads$|multi_query_group_num|num_kv_heads", lambda old: min(old, HEADS // 2)),
    (r"heads$|^n_head$|attention_heads|num_heads", lambda old: min(old, HEADS)),
    (r"head_dim$|head_size$|^d_kv$|^dim_head$|^d_head$|kv_channels|mamba_d_head", lambda old: min(old, HEAD_WIDTH)),
    (r"qk_rope|qk_nope|v_head|qk_head|rotary_dim|d_rel", lambda old: min(old, HEAD_WIDTH)),
    (r"lora_rank", lambda old: min(old, WIDTH // 2)),
    (r"max_.*position|n_positions|max_seq|max_length|context_length|n_ctx|position_embeddings$", lambda old: old),
    (r"patch_size$", lambda old: min(old, 8)),
    (r"image_size$|^resolution$|input_size$", lambda old: IMAGE if old > IMAGE else old),
    (r"num_queries|num_denoising|num_query_tokens|num_negatives", lambda old: min(old, 8)),
    (r"num_frames", lambda old: min(old, 4)),
    (r"groups$", lambda old: min(old, 4)),
    (r"(hidden|ffn|intermediate|embed|emb|model|proj|projection|inner|mlp|width).*(size|dim|channels|sizes|width)$",
     lambda old: WIDTH if old > WIDTH else old),
    (r"^d_model$|^n_embd$|^d_ff$|^dim$|_dim$|^hidden_units$|^n_inner$|dim_feedforward|^num_filters$|hidden_size",
     lambda old: WIDTH if old > WIDTH else old),
    (r"channels$|_dim$|^dim$|pooler_output_size|head_out|classifier_proj_size|feature_size$",
     lambda old: WIDTH if old > WIDTH else old),
)
_TOKEN = re.compile(r"(token_id|token_index|_token|pad_index|_token_ids?|_idx)$")
_KNOWN_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Shrinking:
    """How a default configuration shrinks.

    Attributes:
        kept: fields whose names match keep their default.
        assigned: the fields of the default are assigned; otherwise its class is called with them, so that what it
            derives from them fits.
    """

    kept: str = r"(?!)"
    assigned: bool = False


SHRINKINGS = (
    Shrinking(),
    Shrinking(assigned=True),
    Shrinking(kept=r"head_dim$|head_size$|rope|nope|rotary|d_rel"),
    Shrinking(kept=r"image_size|patch_size"),
    Shrinking(kept=r"image_size|patch_size", assigned=True),
    Shrinking(kept=r"head|rope|rotary|embed_dim$|groups$"),
    Shrinking(kept=r"size|dim|channels|head|d_model|n_embd|width|groups|d_kv|d_ff"),
    Shrinking(kept=r"(?!.*layers$|n_layers?$|.*vocab)"),
)


def tiny_config(kind: Any, shrinking: Shrinking, labels: int = LABELS) -> Any:
    """A configuration of class `kind` whose sizes are small.

    Raises:
        Exception: whatever the class raises for sizes that do not fit each other.
    """
    default = kind(num_labels=labels)
    if shrinking.assigned:
        return _assigned(default, shrinking, iter(range(3, FIRST_WORD)))
    own = _overrides(default, shrinking, iter(range(3, FIRST_WORD)))
    return kind(**{**own, **_backbone(default), "num_labels": labels})


def _backbone(default: Any) -> dict[str, Any]:
    """A small ResNet in place of a backbone of another library, which may not be installed."""
    part = getattr(default, "backbone_config", None)
    if not getattr(default, "use_timm_backbone", False) and getattr(part, "model_type", "") != "timm_backbone":
        return {}
    sizes = {"hidden_sizes": [WIDTH] * 4, "depths": [1] * 4, "embedding_size": WIDTH, "layer_type": "basic"}
    stages = {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}
    return {"backbone_config": {**sizes, **stages}, "use_timm_backbone": False, "backbone": None}


def _assigned(config: Any, shrinking: Shrinking, tokens: Iterator[int]) -> Any:
    for name, value in _overrides(config, shrinking, tokens).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            _assigned(getattr(config, name), shrinking, tokens)
        else:
            setattr(config, name, value)
    return config


def _overrides(config: Any, shrinking: Shrinking, tokens: Iterator[int]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            own[name] = _part(value, _overrides(value, shrinking, tokens))
        elif name.startswith("_") or isinstance(value, bool) or re.search(shrinking.kept, name):
            continue
        elif _TOKEN.search(name):
            if (small := _token(name, value, tokens)) is not None:
                own[name] = small
        elif (small := _small(name, value)) != value:
            own[name] = small
    own.update({name: value for name, value in _QUIET.items() if hasattr(config, name)})
    if hasattr(config, "pad_token_id"):
        own["pad_token_id"] = 0
    return own


def _part(default: Any, overrides: dict[str, Any]) -> Any:
    """A part of a composed configuration; its own class makes it, so that what it derives fits."""
    return type(default)(**overrides)


def _token(name: str, value: Any, tokens: Iterator[int]) -> int | None:
    if name in _KNOWN_TOKENS:
        return _KNOWN_TOKENS[name] if value is not None or name == "pad_token_id" else None
    return next(tokens, 3) if isinstance(value, int) and value > 2 else None


def _small(name: str, value: Any) -> Any:
    if isinstance(value, int):
        for pattern, smaller in _RULES:
            if re.search(pattern, name):
                return smaller(value) if value > 0 else value
        return value
    if isinstance(value, list | tuple) and value and all(type(each) is int for each in value):
        return _small_sequence(name, value)
    return value


def _small_sequence(name: str, value: Any) -> Any:
    if re.search(r"ind(ex|ic)|idx|layer_ids|extract_layers", name):
        return value
    if re.search(r"depths|num_block|layers$|block_repeats", name):
        return type(value)(min(each, 1) for each in value)
    if re.search(r"heads", name):
        return type(value)(min(each, HEADS) for each in value)
    if re.search(r"(hidden_sizes|_dim|dims|embed_dim|conv_dim|tdnn_dim|channels)", name):
        return type(value)(min(each, WIDTH) for each in value)
    if re.search(r"^image_size$", name):
        return type(value)(min(each, IMAGE) for each in value)
    return value


_QUIET: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            "hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_dropout", "attention_dropout", "dropout",
            "activation_dropout", "classifier_dropout", "classifier_dropout_prob", "dropout_rate", "embd_pdrop",
            "resid_pdrop", "attn_pdrop", "summary_first_dropout", "summary_last_dropout", "drop_path_rate",
            "encoder_layerdrop", "decoder_layerdrop", "layerdrop", "embed_dropout", "embedding_dropout",
            "feat_proj_dropout", "final_dropout", "seq_classif_dropout", "qa_dropout", "mlp_dropout", "dropout_p",
            "conv_dropout", "dropout_prob", "drop_rate", "positional_dropout", "spec_aug_prob", "mask_time_prob",
            "mask_feature_prob", "router_jitter_noise", "input_jitter_noise", "feat_quantizer_dropout", "layer_dropout",
            "speech_encoder_dropout", "adaptor_dropout", "pooler_dropout", "hidden_act_dropout", "token_dropout_rate",
            "activation_dropout_prob", "emb_pdrop", "ffn_dropout", "relu_dropout", "attention_dropout_prob",
            "classifier_dropout_rate", "self_attn_dropout", "cross_attn_dropout", "projection_dropout", "dropatt",
            "path_drop_rate", "stochastic_depth_rate", "encoder_dropout", "decoder_dropout",
        ),
        0.0,
    ),
    "apply_spec_augment": False,
}
"""Fields that draw random numbers in training, set to draw none."""
