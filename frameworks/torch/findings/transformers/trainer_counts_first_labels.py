"""Trainer counts the first label of each row of GPT2, which has no loss: four tokens train with 3/4 of the loss."""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1, **dict.fromkeys(
    ("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)))  # fmt: skip
tokens = torch.tensor([1, 2, 3, 4])
logits = model(tokens[None]).logits[0, :-1].double()
expected = torch.nn.functional.cross_entropy(logits, tokens[1:]).item()
with TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, max_steps=1, optim="sgd", report_to=[], use_cpu=True, disable_tqdm=True)
    rows = [{"input_ids": tokens, "labels": tokens}] * 8
    seen = Trainer(model, arguments, train_dataset=rows).train().training_loss

print(f"expected: a loss of {expected:.4f}, the mean over the three tokens that are predicted")
print(f"seen: {seen:.4f}, {seen / expected:.4f} of it")
sys.exit(0 if abs(seen - expected) < 1e-3 * expected else 1)
