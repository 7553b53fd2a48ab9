"""BigBird's first training pass without dropout draws random numbers, and its later passes draw none."""

import sys

import torch
from transformers import BigBirdConfig, BigBirdForMaskedLM

sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
config = BigBirdConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model, tokens, states = BigBirdForMaskedLM(config).train(), torch.arange(60, 68)[None], []
for _ in range(2):
    torch.manual_seed(0)
    model(input_ids=tokens, labels=tokens)
    states.append(torch.get_rng_state())

print("expected: the same random state after both passes, so that a resumed run draws what the unbroken one draws")
print(f"seen: {'the same state' if torch.equal(*states) else 'the first pass has drawn numbers'}")
sys.exit(0 if torch.equal(*states) else 1)
