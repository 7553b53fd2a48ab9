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

FRAMES = 64
"""Of a spectrogram."""
POSITIONS = 128

Rule = tuple[str, Callable[[int], int]]

_DEPTH = r"^n_layers?$|layers$|^depth$|num_layers?$|num_blocks$|_depth$|^num_stages_per$|^layers$|num_block_repeats"
_RULES: tuple[Rule, ...] = (
    (r"vocab_size|vocabulary_size|^vocab_size_per_layer_input$", lambda old: min(old, VOCABULARY)),
    (r"experts_per_tok|moe_topk|^moe_k$|top_k_experts|experts_per_token", lambda old: min(old, 2)),
    (r"num_expert_group|^n_group$|topk_group", lambda old: min(old, 1)),
    (r"shared_expert(s)?$|n_shared_experts", lambda old: min(old, 1)),
    (r"expert.*(intermediate|hidden|dim|width)", lambda old: min(old, WIDTH)),
    (r"experts$|n_routed", lambda old: min(old, 4)),
    (r"feat_extract_layers|feature_layer|dense_replace|max_window_layers|adapter_layers", lambda old: old),
    (_DEPTH, lambda old: min(old, 2)),
    (r"(key_value|kv|n_kv).*heads$|multi_query_group_num|num_kv_heads", lambda old: min(_power(old), HEADS // 2)),
    (r"heads$|^n_head$|attention_heads|num_heads", lambda old: min(_power(old), HEADS)),
    (r"head_dim$|head_size$|^d_kv$|^dim_head$|^d_head$|kv_channels|mamba_d_head", lambda old: min(old, HEAD_WIDTH)),
    (r"qk_rope|qk_nope|v_head|qk_head|rotary_dim|d_rel", lambda old: min(old, HEAD_WIDTH)),
    (r"lora_rank", lambda old: min(old, WIDTH // 2)),
    (r"max_source_positions", lambda old: min(old, FRAMES // 2)),
    (
        r"^(max_position_embeddings|n_positions|n_ctx|max_target_positions|max_seq_len|max_sequence_length)$",
        lambda old: min(old, POSITIONS),
    ),
    (r"max_.*position|max_length|context_length|position_embeddings$", lambda old: old),
    (r"^attention_window$", lambda old: min(old, 4)),
    (r"patch_size$", lambda old: min(old, 8)),
    (r"^window_size$", lambda old: min(old, 2)),
    (r"num_queries|num_denoising|num_query_tokens|num_negatives", lambda old: min(old, 8)),
    (r"num_frames", lambda old: min(old, 4)),
    (r"groups$", lambda old: min(old, 4)),
    (
        r"(hidden|ffn|intermediate|embed|emb|model|proj|projection|inner|mlp|width).*(size|dim|channels|sizes|width)$",
        lambda old: WIDTH if old > WIDTH else old,
    ),
    (
        r"^d_model$|^n_embd$|^d_ff$|^dim$|_dim$|^hidden_units$|^n_inner$|dim_feedforward|^num_filters$|hidden_size",
        lambda old: WIDTH if old > WIDTH else old,
    ),
    (
        r"channels$|_dim$|^dim$|pooler_output_size|head_out|classifier_proj_size|feature_size$",
        lambda old: WIDTH if old > WIDTH else old,
    ),
)
_TOKEN = re.compile(r"(token_id|token_index|_token|pad_index|_token_ids?|_idx)$")
_KNOWN_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Shrinking:
    """How a default configuration shrinks.

    Attributes:
        exempt: fields whose names match keep their default.
        assigned: the fields of the default are assigned; otherwise its class is called with them, so that what it
            derives from them fits.
        image: height and width of images that have more.
    """

    exempt: str = r"(?!)"
    assigned: bool = False
    image: int = IMAGE


SHRINKINGS = (
    Shrinking(),
    Shrinking(image=2 * IMAGE),
    Shrinking(assigned=True),
    Shrinking(exempt=r"head_dim$|head_size$|rope|nope|rotary|d_rel"),
    Shrinking(exempt=r"image_size|patch_size"),
    Shrinking(exempt=r"image_size|patch_size", assigned=True),
    Shrinking(exempt=r"head|rope|rotary|embed_dim$|groups$"),
    Shrinking(exempt=r"size|dim|channels|head|d_model|n_embd|width|groups|d_kv|d_ff"),
    Shrinking(exempt=r"(?!.*layers$|n_layers?$|.*vocab)"),
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


def shrinkings(kind: Any) -> Iterator[Shrinking]:
    """The ways to shrink a configuration class, the smallest result first."""
    pictures = "image_size" in repr(kind())
    yield from (each for each in SHRINKINGS if pictures or each.image == IMAGE)


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
            own[name] = type(value)(**_overrides(value, shrinking, tokens))
        elif name.startswith("_") or isinstance(value, bool) or re.search(shrinking.exempt, name):
            continue
        elif _TOKEN.search(name):
            if (small := _token(name, value, tokens)) is not None:
                own[name] = small
        elif hasattr(config, "depths") and type(value) is int and re.search(_DEPTH, name):
            continue  # derived from the number of stages
        elif (small := _small(name, value, shrinking.image)) != value:
            own[name] = small
    own.update(_cut_lists(config, own))
    own.update({name: value for name, value in _WITHOUT.items() if hasattr(config, name)})
    own.update({name: _none_of(value) for name, value in vars(config).items() if _DROPS.search(name)})
    for name, value in _UNSET.items():
        if getattr(config, name, "") is None:
            own[name] = value
    if hasattr(config, "pad_token_id"):
        own["pad_token_id"] = 0
    return own


def _cut_lists(config: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Lists with an entry for each layer, cut to the layers that are left."""
    depths = {
        getattr(config, name): small for name, small in own.items() if re.search(_DEPTH, name) and type(small) is int
    }
    return {
        name: own.get(name, value)[: depths[len(value)]]
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) > 2 and len(value) in depths and not name.startswith("_")
    }


def _none_of(value: Any) -> Any:
    """No dropout, in the form of this value."""
    if isinstance(value, list | tuple):
        return type(value)(0.0 for _ in value)
    return type(value)(0) if type(value) in (int, float) else value


def _power(value: int) -> int:
    """The largest power of two that is not greater."""
    return 1 << max(value, 1).bit_length() - 1


def _token(name: str, value: Any, tokens: Iterator[int]) -> int | None:
    if name in _KNOWN_TOKENS:
        return _KNOWN_TOKENS[name] if value is not None or name == "pad_token_id" else None
    return next(tokens, 3) if isinstance(value, int) and value > 2 else None


def _small(name: str, value: Any, image: int) -> Any:
    if re.search(r"image_size$|^resolution$|input_size$", name):
        if isinstance(value, list | tuple):
            return type(value)(min(each, image) for each in value)
        return min(value, image) if isinstance(value, int) else value
    if isinstance(value, int):
        for pattern, smaller in _RULES:
            if re.search(pattern, name):
                return smaller(value) if value > 0 else value
        return value
    if isinstance(value, dict) and "mrope_section" in value:
        half = int(HEAD_WIDTH * value.get("partial_rotary_factor", 1.0)) // 2
        return {**value, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    if isinstance(value, list | tuple) and value and all(type(each) is int for each in value):
        return _small_sequence(name, value)
    return value


def _small_sequence(name: str, value: Any) -> Any:
    if re.search(r"ind(ex|ic)|idx|layer_ids|extract_layers", name):
        return value
    if re.search(r"depths|num_block|layers$|block_repeats", name):
        return type(value)(min(each, 1) for each in value)
    if re.search(r"heads", name):
        return type(value)(min(_power(each), HEADS) for each in value)
    if re.search(r"^attention_window$", name):
        return type(value)(min(each, 4) for each in value)
    if re.search(r"(hidden_sizes|_dim|dims|embed_dim|conv_dim|tdnn_dim|channels)", name):
        return type(value)(min(each, WIDTH) for each in value)
    return value


_DROPS = re.compile(r"drop|pdrop|mask_(time|feature)_prob|jitter_noise|stochastic_depth_rate")
"""Fields with a rate at which random numbers are drawn in training."""
_WITHOUT: Mapping[str, Any] = {
    "apply_spec_augment": False,
    "use_cache": False,
    "axial_pos_embds": False,
    "default_language": "en_XX",
}
_UNSET: Mapping[str, Any] = {"vocab_size": VOCABULARY, "prediction_length": 8}
"""Values of fields that have to be set and have no default."""
