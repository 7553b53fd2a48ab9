"""ClvpForCausalLM says that it supports gradient checkpointing, and saves as many bytes with it as without."""

import sys

import torch
from transformers import ClvpDecoderConfig, ClvpForCausalLM

sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "n_inner": 32}
model = ClvpForCausalLM(ClvpDecoderConfig(**sizes, max_position_embeddings=64)).train()
tokens, saved = torch.arange(32)[None], []


def count(tensor):
    saved[-1] += tensor.nbytes
    return tensor


for enabled in (False, True):
    if enabled:
        model.gradient_checkpointing_enable()
    saved.append(0)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(input_ids=tokens, labels=tokens, use_cache=False)

print(f"expected: fewer than {saved[0]} saved bytes, as the class says that it supports checkpointing")
print(f"seen: {saved[1]}")
sys.exit(0 if not model.supports_gradient_checkpointing or saved[1] < saved[0] else 1)
