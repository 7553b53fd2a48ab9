"""transformers' head classes, and heads built from tiny configurations, with rows that they can be trained on."""

import copy
import gc
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import torch

from frameworks.torch.stacks.heads.checks import HeadCheck

LIBRARY = "transformers"
MOST_PARAMETERS = 10_000_000
LONGEST_PASS_S = 0.15
"""Limits of the parameters of a head, and of the seconds of a pass."""
_HEAD = re.compile(r"(?!Auto|TF|Flax|DataCollator)\w+(For[A-Z]\w+|LMHeadModel|DoubleHeadsModel)")
_TARGETS = ("labels", "start_positions", "mask_labels", "future_values")

ROWS, LENGTH, SAMPLES, CHOICES, LABELS = 8, 8, 2048, 2, 3
"""Rows of a batch, tokens of a row, samples of a sound, answers to choose from, and classes."""
WIDTH = 32
HEADS = 4
HEAD_WIDTH = WIDTH // HEADS
VOCABULARY = 99
FIRST_WORD = 60
"""The first ordinary token id: smaller ids have a special meaning in a tiny configuration."""
IMAGE, FRAMES, POSITIONS = 32, 64, 128
"""Height and width of an image in pixels, frames of a spectrogram, and positions that a model knows."""

Row = dict[str, Any]
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
        lambda old: min(old, WIDTH),
    ),
    (
        r"^d_model$|^n_embd$|^d_ff$|^dim$|_dim$|^hidden_units$|^n_inner$|dim_feedforward|^num_filters$|hidden_size",
        lambda old: min(old, WIDTH),
    ),
    (
        r"channels$|_dim$|^dim$|pooler_output_size|head_out|classifier_proj_size|feature_size$",
        lambda old: min(old, WIDTH),
    ),
)
_TOKEN = re.compile(r"(token_id|token_index|_token|pad_index|_token_ids?|_idx)$")
_KNOWN_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_DROPS = re.compile(r"drop|pdrop|mask_(time|feature)_prob|jitter_noise|stochastic_depth_rate")
"""Names of fields with a rate of dropout or of another random change in training."""
_WITHOUT: Mapping[str, Any] = {
    "apply_spec_augment": False,
    "use_cache": False,
    "axial_pos_embds": False,
    "default_language": "en_XX",
}
_UNSET: Mapping[str, Any] = {"vocab_size": VOCABULARY, "prediction_length": 8}
"""Values of fields that are required and have no default."""
_BINS = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "feature_projection_input_dim")
"""Fields with the number of frequencies of a spectrogram."""


@dataclass(frozen=True)
class Shrinking:
    """Rules that shrink a default configuration.

    Attributes:
        exempt: fields whose names match keep their default.
        assigned: small values are assigned to fields; otherwise the class is called with them, so that derived
            fields fit.
        image: limit of the height and width of images, in pixels.
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
        return _assign_overrides(default, shrinking, iter(range(3, FIRST_WORD)))
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


def _assign_overrides(config: Any, shrinking: Shrinking, tokens: Iterator[int]) -> Any:
    for name, value in _overrides(config, shrinking, tokens).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            _assign_overrides(getattr(config, name), shrinking, tokens)
        else:
            setattr(config, name, value)
    return config


def _overrides(config: Any, shrinking: Shrinking, tokens: Iterator[int]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            changes[name] = type(value)(**_overrides(value, shrinking, tokens))
        elif name.startswith("_") or isinstance(value, bool) or re.search(shrinking.exempt, name):
            continue
        elif _TOKEN.search(name):
            if (small := _token(name, value, tokens)) is not None:
                changes[name] = small
        elif hasattr(config, "depths") and type(value) is int and re.search(_DEPTH, name):
            continue  # the class derives it from the number of stages
        elif (small := _small(name, value, shrinking.image)) != value:
            changes[name] = small
    changes.update(_cut_lists(config, changes))
    changes.update({name: value for name, value in _WITHOUT.items() if hasattr(config, name)})
    changes.update({name: _none_of(value) for name, value in vars(config).items() if _DROPS.search(name)})
    for name, value in _UNSET.items():
        if getattr(config, name, "") is None:
            changes[name] = value
    if hasattr(config, "pad_token_id"):
        changes["pad_token_id"] = 0
    return changes


def _cut_lists(config: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Lists with an entry for each layer, cut to the small number of layers."""
    depths = {
        getattr(config, name): small for name, small in own.items() if re.search(_DEPTH, name) and type(small) is int
    }
    return {
        name: own.get(name, value)[: depths[len(value)]]
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) > 2 and len(value) in depths and not name.startswith("_")
    }


def _none_of(value: Any) -> Any:
    """A rate of 0 of the type of this value."""
    if isinstance(value, list | tuple):
        return type(value)(0.0 for _ in value)
    return type(value)(0) if type(value) in (int, float) else value


def _power(value: int) -> int:
    """The largest power of two up to the value."""
    return 1 << max(value, 1).bit_length() - 1


def _token(name: str, value: Any, tokens: Iterator[int]) -> int | None:
    if name in _KNOWN_TOKENS:
        return _KNOWN_TOKENS[name] if value is not None or name == "pad_token_id" else None
    return next(tokens, 3) if isinstance(value, int) and value > 2 else None


def _small(name: str, value: Any, image: int) -> Any:
    if re.search(r"image_size$|^resolution$|input_size$", name):
        if isinstance(value, list | tuple):
            return type(value)(min(size, image) for size in value)
        return min(value, image) if isinstance(value, int) else value
    if isinstance(value, int):
        for pattern, smaller in _RULES:
            if re.search(pattern, name):
                return smaller(value) if value > 0 else value
        return value
    if isinstance(value, dict) and "mrope_section" in value:
        half = int(HEAD_WIDTH * value.get("partial_rotary_factor", 1.0)) // 2
        return {**value, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    if isinstance(value, list | tuple) and value and all(type(element) is int for element in value):
        return _small_sequence(name, value)
    return value


def _small_sequence(name: str, value: Any) -> Any:
    if re.search(r"ind(ex|ic)|idx|layer_ids|extract_layers", name):
        return value
    if re.search(r"depths|num_block|layers$|block_repeats", name):
        return type(value)(min(size, 1) for size in value)
    if re.search(r"heads", name):
        return type(value)(min(_power(size), HEADS) for size in value)
    if re.search(r"^attention_window$", name):
        return type(value)(min(size, 4) for size in value)
    if re.search(r"(hidden_sizes|_dim|dims|embed_dim|conv_dim|tdnn_dim|channels)", name):
        return type(value)(min(size, WIDTH) for size in value)
    return value


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these fields that the configuration, or a part of it, has."""
    parts = [config, *(value for value in vars(config).values() if hasattr(value, "model_type"))]
    for name in names:
        for part in parts:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of the class's forward."""
    return inspect.signature(kind.forward).parameters


def candidates(kind: Any, config: Any) -> Iterator[list[Row]]:
    """Lists of `ROWS` rows that the head may accept, the most likely list first."""
    takes = parameters(kind)
    for inputs in _inputs(kind, config, takes):
        for labels in _labels(kind, config, takes, inputs):
            yield [{**inputs(row), **labels(row)} for row in range(ROWS)]


def _generator(row: int, salt: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * salt + row)


def _words(config: Any, row: int, *shape: int, salt: int = 0) -> torch.Tensor:
    top = int(find(config, "vocab_size", default=FIRST_WORD + LENGTH))
    low = min(FIRST_WORD, max(top - LENGTH, 1))
    return torch.randint(low, max(top, low + 1), shape, generator=_generator(row, salt))


def _image(config: Any, row: int, frames: int | None = None) -> torch.Tensor:
    size = find(config, "image_size", default=IMAGE)
    high, wide = (size, size) if isinstance(size, int) else (size[-2], size[-1])
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) and channels in (1, 3, 4) else 3
    shape = (channels, high, wide) if frames is None else (frames, channels, high, wide)
    return torch.randn(shape, generator=_generator(row, 2))


def _inputs(kind: Any, config: Any, takes: Mapping[str, Any]) -> Iterator[Any]:
    main = kind.main_input_name if isinstance(kind.main_input_name, str) else kind.main_input_name[0]
    choices = (CHOICES,) if "MultipleChoice" in kind.__name__ else ()

    def text(row: int) -> Row:
        result: Row = {"input_ids": _words(config, row, *choices, LENGTH)}
        if isinstance(end := find(config, "eos_token_id"), int):
            result["input_ids"][..., -1] = end
        if "attention_mask" in takes:
            result["attention_mask"] = torch.ones(*choices, LENGTH, dtype=torch.long)
        if "bbox" in takes:
            result["bbox"] = torch.tensor([0, 0, 10, 10]).expand(*choices, LENGTH, 4).clone()
        return result

    def with_image(row: int) -> Row:
        return {**text(row), "pixel_values": _image(config, row)}

    def with_decoder(row: int) -> Row:
        return {**text(row), "decoder_input_ids": _words(config, row, LENGTH, salt=7)}

    images = [lambda row: {main: _image(config, row)}]
    if main in ("pixel_values", "pixel_values_videos", "flattened_patches"):
        frames = int(find(config, "num_frames", "frames_per_clip", default=4))
        if "Video" in kind.__name__ or main.endswith("videos"):
            yield lambda row: {main: _image(config, row, frames)}
        yield images[0]
        if "input_ids" in takes:
            yield with_image
        return
    if main == "inputs":
        if "Image" not in kind.__name__:
            yield lambda row: {"inputs": text(row)["input_ids"], "attention_mask": text(row)["attention_mask"]}
        yield images[0]
        return
    if main in ("input_values", "input_features"):
        yield from _sounds(main, config)
        return
    if main == "past_values":
        yield from _series(config)
        return
    yield text
    if "pixel_values" in takes:
        yield with_image
    if "decoder_input_ids" in takes:
        yield with_decoder
    if main == "input_ids":
        for name in ("input_features", "input_values"):
            if name in takes:
                for sound in _sounds(name, config):
                    yield sound
                    yield lambda row, sound=sound: {**text(row), **sound(row)}


def _sounds(main: str, config: Any) -> Iterator[Any]:
    bins = int(find(config, *_BINS, default=80))
    for shape in {
        "input_values": ((SAMPLES,), (1, SAMPLES), (FRAMES, bins), (1024, bins)),
        "input_features": ((bins, FRAMES), (FRAMES, bins), (bins, 3000)),
    }[main]:
        yield lambda row, shape=shape: {main: torch.randn(shape, generator=_generator(row, 3))}


def _series(config: Any) -> Iterator[Any]:
    context = int(find(config, "context_length", default=32))
    channels = int(find(config, "num_input_channels", default=1))
    yield lambda row: {"past_values": torch.randn(context, channels, generator=_generator(row, 4))}
    lags = max(find(config, "lags_sequence", default=[0]))
    ahead = int(find(config, "prediction_length", default=8) or 8)

    def forecast(row: int) -> Row:
        size = context + lags
        return {
            "past_values": torch.randn(size, generator=_generator(row, 4)),
            "past_time_features": torch.randn(size, find(config, "num_time_features", default=0) or 0),
            "past_observed_mask": torch.ones(size),
            "future_time_features": torch.randn(ahead, find(config, "num_time_features", default=0) or 0),
        }

    yield forecast


def _labels(kind: Any, config: Any, takes: Mapping[str, Any], inputs: Any) -> Iterator[Any]:
    name = kind.__name__
    if "start_positions" in takes:
        yield lambda row: {"start_positions": torch.tensor(row % 4), "end_positions": torch.tensor(4 + row % 3)}
    if "future_values" in takes:
        ahead = int(find(config, "prediction_length", default=8) or 8)
        channels = int(find(config, "num_input_channels", default=1))
        for shape in ((ahead, channels), (ahead,)):
            yield lambda row, shape=shape: {"future_values": torch.randn(shape, generator=_generator(row, 5))}
    if "mask_labels" in takes:
        size = _image(config, 0).shape[-1]
        yield lambda row: {"mask_labels": [_mask(row, size)], "class_labels": [torch.tensor([row % LABELS, 1])]}
    if "labels" not in takes:
        return

    def scalar(row: int) -> Row:
        return {"labels": torch.tensor(row % LABELS)}

    def binary(row: int) -> Row:
        return {"labels": torch.tensor(row % 2)}

    def sequence(row: int) -> Row:
        batch = inputs(row)
        like = batch.get("decoder_input_ids", batch.get("input_ids"))
        return {"labels": _words(config, row, LENGTH, salt=6) if like is None else like.clone()}

    def tags(row: int) -> Row:
        return {"labels": torch.randint(0, LABELS, (LENGTH,), generator=_generator(row, 6))}

    def area(row: int) -> Row:
        size = _image(config, row).shape[-2:]
        return {"labels": torch.randint(0, LABELS, tuple(size), generator=_generator(row, 6))}

    def objects(row: int) -> Row:
        boxes = torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.3, 0.4, 0.2, 0.1]]) + 0.01 * row
        return {"labels": [{"class_labels": torch.tensor([row % LABELS, 1]), "boxes": boxes}]}

    def many(row: int) -> Row:
        return {"labels": (torch.arange(LABELS) == row % LABELS).float()}

    if "next_sentence_label" in takes:
        yield lambda row: {**sequence(row), "next_sentence_label": torch.tensor(row % 2)}
    if "sentence_order_label" in takes:
        yield lambda row: {**sequence(row), "sentence_order_label": torch.tensor(row % 2)}
    if "mc_labels" in takes:
        yield lambda row: {**sequence(row)}
    if re.search(r"MultipleChoice|NextSentence", name):
        yield binary
    elif re.search(r"TokenClassification|AudioFrame", name):
        yield tags
    elif re.search(r"CTC|RNNT|TDT", name):
        yield lambda row: {"labels": torch.randint(3, 12, (4,), generator=_generator(row, 6))}
    elif re.search(r"Detection", name):
        yield objects
    elif re.search(r"Segmentation|Depth|Dense", name):
        yield area
    elif re.search(r"Classification|XVector", name):
        yield scalar
        yield many
        yield tags
    yield sequence
    yield scalar
    yield tags


def _mask(row: int, size: int) -> torch.Tensor:
    masks = torch.zeros(2, size, size)
    masks[0, : size // 2, : row + 1] = 1.0
    masks[1, size // 2 :, row:] = 1.0
    return masks


def make_ragged_rows(rows: list[Row]) -> list[Row] | None:
    """The rows with unequal numbers of counted labels (others are -100); None if labels are no sequence."""
    labels = rows[0].get("labels")
    if not isinstance(labels, torch.Tensor) or labels.dim() != 1 or labels.dtype != torch.long or len(labels) < LENGTH:
        return None
    return [{**row, "labels": _cut(row["labels"], number)} for number, row in enumerate(rows)]


def _cut(labels: torch.Tensor, number: int) -> torch.Tensor:
    cut = labels.clone()
    cut[len(labels) - number * (len(labels) - 2) // ROWS :] = -100
    return cut


def collate(rows: list[Row]) -> dict[str, Any]:
    """A batch: tensors are stacked, lists joined."""
    return {
        name: torch.stack([row[name] for row in rows])
        if isinstance(rows[0][name], torch.Tensor)
        else [element for row in rows for element in row[name]]
        for name in rows[0]
    }


class NotBuilt(Exception):
    """The head cannot be built or trained from a tiny configuration; the message says why."""


def head_names() -> list[str]:
    """The names of all classes of transformers that are called like heads, without importing them."""
    import transformers

    return sorted(name for name in dir(transformers) if _HEAD.fullmatch(name))


def head_class(name: str) -> Any:
    """The head class of this name.

    Raises:
        NotBuilt: there is no such class, or its forward takes no targets.
    """
    import transformers

    try:
        kind = getattr(transformers, name)
    except AttributeError:
        near = get_close_matches(name, head_names(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotBuilt(f"transformers {transformers.__version__} has no class {name!r}{hint}") from None
    except (ImportError, RuntimeError) as error:
        raise NotBuilt(f"cannot be imported: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(kind, type) or not hasattr(kind, "forward"):
        raise NotBuilt("is no model")
    if getattr(kind, "__module__", "").endswith("dummy_pt_objects"):
        raise NotBuilt("needs a library that is not installed")
    if not set(_TARGETS) & set(inspect.signature(kind.forward).parameters):
        raise NotBuilt("its forward takes no targets")
    return kind


@dataclass(frozen=True)
class TinyHead:
    """A head class, its tiny configuration and its rows."""

    kind: Any
    config: Any
    rows: list[Row]

    def model(self, seed: int = 0) -> Any:
        """A model with the weights of this seed."""
        torch.manual_seed(seed)
        return self.kind(copy.deepcopy(self.config)).train()


def build_head(kind: Any, limit_s: float = 2.0) -> TinyHead:
    """The head with the first tiny configuration and rows that give a finite, differentiable loss.

    Raises:
        NotBuilt: there is none within `limit_s` seconds of this processor.
    """
    if getattr(kind, "config_class", None) is None:
        raise NotBuilt("it has no configuration class")
    labels = 2 if "QuestionAnswering" in kind.__name__ else LABELS
    deadline = time.process_time() + limit_s
    without_model, without_loss = list[str](), list[str]()
    try:
        has_images = "image_size" in repr(kind.config_class())
    except Exception as error:  # a configuration class may raise anything
        raise NotBuilt(f"no default configuration: {_short(error)}") from None
    for shrinking in SHRINKINGS:
        if shrinking.image != IMAGE and not has_images:
            continue
        if time.process_time() > deadline:
            break
        try:
            config = tiny_config(kind.config_class, shrinking, labels)
            model = _small_model(kind, config)
        except NotBuilt as error:
            without_model.append(str(error))
            continue
        except Exception as error:  # whatever the class raises for sizes that do not fit each other
            without_model.append(f"no model: {_short(error)}")
            continue
        for rows in candidates(kind, config):
            if (began := time.process_time()) > deadline:
                break
            if reason := _problem_of_pass(model, rows):
                without_loss.append(reason)
            elif (seconds := time.process_time() - began) > LONGEST_PASS_S:
                without_loss.append(f"a pass takes {seconds:.1f} s")
                break
            else:
                return TinyHead(kind, config, rows)
    raise NotBuilt(next(iter([*without_loss, *without_model]), "no time"))


def _small_model(kind: Any, config: Any) -> Any:
    """A new model; raises NotBuilt if it has more than `MOST_PARAMETERS`."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise NotBuilt(f"a configuration has {size:,} parameters")
    torch.manual_seed(0)
    return kind(copy.deepcopy(config)).train()


def _problem_of_pass(model: Any, rows: list[Row]) -> str:
    """The reason why rows give no finite, differentiable loss, "" if they give one."""
    try:
        loss = loss_of(model(**collate(rows)))
        loss.backward()
    except Exception as error:  # whatever the model raises for inputs that it does not take
        return f"no loss: {_short(error)}"
    return "" if math.isfinite(float(loss.detach())) else f"the loss is {float(loss.detach())}"


def loss_of(output: Any) -> torch.Tensor:
    """The loss of a forward pass.

    Raises:
        ValueError: the model returns no loss.
    """
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is None:
        raise ValueError("the forward pass returned no loss")
    return loss


def _short(error: Exception) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200]}"


def names() -> list[str]:
    """The heads, as "transformers:CLASS"."""
    import_module("frameworks.torch.stacks.heads.library_heads")  # seconds outside of any model's limit
    return [f"{LIBRARY}:{name}" for name in head_names()]


def checks(model: str, formats: tuple[str, ...]) -> Iterator[HeadCheck]:
    """The checks of a model, "transformers:CLASS" or "PACKAGE.MODULE:FACTORY".

    Raises:
        NotBuilt: it cannot be trained, or not to the end.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module, _, name = model.partition(":")
    try:
        if module == LIBRARY:
            heads = import_module("frameworks.torch.stacks.heads.library_heads")
            logs = import_module("transformers.utils.logging")
            logs.disable_progress_bar()
            logs.set_verbosity_error()
            kind = head_class(name)
            gc.freeze()
            yield from heads.checks(kind, formats)
        else:
            plain = import_module("frameworks.torch.stacks.heads.plain")
            yield from plain.checks(plain.call_factory(module, name), formats)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
