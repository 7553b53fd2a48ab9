"""Llama's classifier drops num_items_in_batch, so a window of four micro-batches has four times the loss."""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments

sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = LlamaConfig(**sizes, intermediate_size=32, pad_token_id=0)
rows = [{"input_ids": torch.arange(8) + row, "labels": torch.tensor(row % 2)} for row in range(8)]
losses = []
for k in (1, 4):
    with TemporaryDirectory() as folder:
        steps = {"per_device_train_batch_size": 8 // k, "gradient_accumulation_steps": k, "max_steps": 1}
        arguments = TrainingArguments(folder, **steps, optim="sgd", report_to=[], use_cpu=True, disable_tqdm=True)
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(config)
        losses.append(Trainer(model, arguments, train_dataset=rows).train().training_loss)

print(f"expected: a loss of {losses[0]:.4f} in a window of four micro-batches, as in one of all rows")
print(f"seen: {losses[1]:.4f}")
sys.exit(0 if abs(losses[1] - losses[0]) < 1e-3 else 1)
