"""Of ESM, whose forward takes no num_items_in_batch, Trainer averages the means of unequal micro-batches."""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import EsmConfig, EsmForMaskedLM, Trainer, TrainingArguments

sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
config = EsmConfig(vocab_size=33, pad_token_id=1, mask_token_id=32, max_position_embeddings=40, **sizes, **dropout)
tokens = [4 + (torch.arange(8) + row) % 20 for row in range(4)]
rows = [
    {"input_ids": ids, "labels": ids.masked_fill(torch.arange(8) >= labels, -100)}
    for ids, labels in zip(tokens, (8, 1, 1, 1), strict=True)
]
losses = []
for k in (1, 4):
    with TemporaryDirectory() as folder:
        steps = {"per_device_train_batch_size": 4 // k, "gradient_accumulation_steps": k, "max_steps": 1}
        arguments = TrainingArguments(folder, **steps, optim="sgd", report_to=[], use_cpu=True, disable_tqdm=True)
        torch.manual_seed(0)
        model = EsmForMaskedLM(config)
        losses.append(Trainer(model, arguments, train_dataset=rows).train().training_loss)

print(f"expected: a loss of {losses[0]:.4f} in a window of four micro-batches, as in one of all rows")
print(f"seen: {losses[1]:.4f}")
sys.exit(0 if abs(losses[1] - losses[0]) < 1e-3 else 1)
