"""Sentence pairs, their tokens, and weights that come from elsewhere."""

import numpy as np
import pytest

from conformance.scenarios.definitions import use_fp16
from fixtures import pretrained, sentences


def test_pairs_are_balanced_and_of_one_length() -> None:
    made = sentences.pairs(400)
    assert 150 < sum(pair.same for pair in made) < 250
    batch = sentences.pair_batch(400)
    assert batch.inputs.shape == (400, sentences.LENGTH)
    assert batch.items == 400
    assert batch.targets["output"][:, 0].tolist() == [int(pair.same) for pair in made]
    index = {word: number for number, word in enumerate(sentences.vocabulary())}
    assert (batch.inputs[:, sentences.FIRST_LENGTH - 1] == index["[SEP]"]).all()
    for pair in made:
        agent, thing = pair.first.split()[1], pair.first.split()[4]
        assert (agent in pair.second.split()) == (thing in pair.second.split()) == pair.same
    with pytest.raises(ValueError, match="does not make 15 tokens"):
        sentences.pair_batch(2, lambda *pair: range(len(pair)))


def test_stored_products_are_turned_and_tables_joined() -> None:
    width, rng = 4, np.random.default_rng(0)
    model = use_fp16(real=False).setting().model
    shapes = {"embeddings.word_embeddings": (9, width), "embeddings.position_embeddings": (20, width)}
    shapes |= {"embeddings.token_type_embeddings": (2, width), "embeddings.LayerNorm": (width,)}
    block = "encoder.layer.0."
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes[block + name] = (width, width)
    shapes |= {f"{block}intermediate.dense": (6, width), f"{block}output.dense": (width, 6)}
    shapes |= {f"{block}attention.output.LayerNorm": (width,), f"{block}output.LayerNorm": (width,)}
    stored = {f"{name}.weight": rng.standard_normal(shape) for name, shape in shapes.items()}
    stored |= {f"{name}.bias": rng.standard_normal(shape[0]) for name, shape in shapes.items()}
    result = pretrained.starts(stored, blocks=1)
    wanted = {name for name in model.parameter_shapes() if int(name.split(".")[0]) < 7}
    assert result.keys() == wanted
    assert result["5.body.0.weight"].shape == (width, 6)
    np.testing.assert_array_equal(result["3.body.0.key.weight"], stored[f"{block}attention.self.key.weight"].T)
    types = stored["embeddings.token_type_embeddings.weight"]
    places = stored["embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(result["1.weight"][sentences.FIRST_LENGTH], places[sentences.FIRST_LENGTH] + types[1])
    np.testing.assert_array_equal(result["1.weight"][0], places[0] + types[0])
