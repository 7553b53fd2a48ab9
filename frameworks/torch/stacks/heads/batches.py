"""Rows for a transformers head: inputs and labels by the signature of its forward and the last words of its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from frameworks.torch.stacks.heads.configs import FIRST_WORD, FRAMES, IMAGE, LABELS

ROWS = 8
LENGTH = 8
SAMPLES = 2048
CHOICES = 2

_BINS = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "feature_projection_input_dim")
"""Fields with the number of frequencies of a spectrogram."""

Row = dict[str, Any]


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these fields, in the configuration or its parts."""
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
    """Lists of `ROWS` rows that the head may accept, the likeliest first."""
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
        made: Row = {"input_ids": _words(config, row, *choices, LENGTH)}
        if isinstance(end := find(config, "eos_token_id"), int):
            made["input_ids"][..., -1] = end
        if "attention_mask" in takes:
            made["attention_mask"] = torch.ones(*choices, LENGTH, dtype=torch.long)
        if "bbox" in takes:
            made["bbox"] = torch.tensor([0, 0, 10, 10]).expand(*choices, LENGTH, 4).clone()
        return made

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
        made = inputs(row)
        like = made.get("decoder_input_ids", made.get("input_ids"))
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


def ragged(rows: list[Row]) -> list[Row] | None:
    """The rows with other numbers of counted labels, by -100; None where a row's labels are no sequence."""
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
        else [each for row in rows for each in row[name]]
        for name in rows[0]
    }
