"""Fine-tuning a sentence-pair classifier with and without float16."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy
from fixtures import pretrained
from fixtures.models import sentence_encoder
from fixtures.recipe import BFLOAT16, FLOAT16, Adam, DynamicScaling, Recipe
from fixtures.sentences import LENGTH, pair_batch, vocabulary

TRAINED, TESTED, TESTED_REAL = 960, 240, 96


def _small() -> Setting:
    model = sentence_encoder(len(vocabulary()), LENGTH, width=64, heads=4, inner=256, blocks=2)
    about = (
        f"{TRAINED} pairs of sentences, {TESTED} for the test; random weights, for pretrained ones are not installed"
    )
    return Setting(model, pair_batch(TRAINED), pair_batch(TESTED, seed=1), about)


def _pretrained() -> Setting:
    model, tokenize = pretrained.pair_model(), pretrained.tokenizer()
    count = sum(weight.size for weight in model.weights(0).values()) / 1e6
    weights = f"{model.name}'s weights, {count:.1f} million parameters"
    about = f"{TRAINED} pairs of sentences, {TESTED_REAL} for the test; {weights}"
    return Setting(model, pair_batch(TRAINED, tokenize), pair_batch(TESTED_REAL, tokenize, seed=1), about)


def use_fp16(*, real: bool) -> Scenario:
    """The scenario with pretrained weights, or with a small model from random ones."""
    plain = Recipe(Adam(5e-5 if real else 1e-3))
    return Scenario(
        name="use-fp16",
        title="A sentence-pair classifier is fine-tuned: float32, float16 with dynamic loss scaling, bfloat16",
        source="Paddle's --use_fp16 on XNLI",
        setting=_pretrained if real else _small,
        sides=(
            Side("float32", plain),
            Side("float16", plain.replace(precision=FLOAT16, scaling=DynamicScaling())),
            Side("bfloat16", plain.replace(precision=BFLOAT16)),
        ),
        batch=8 if real else 16,
        epochs=1 if real else 5,
        learns_in=16 if real else 150,
        quality=accuracy(position=0),
        shorter={"cpu": 16, "emulated": 2} if real else {"emulated": 150},
        modes={"paddle": "static"},
    )


USE_FP16 = use_fp16(real=pretrained.installed())
