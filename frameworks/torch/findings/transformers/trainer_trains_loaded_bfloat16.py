"""Trainer's bf16=True updates a loaded bfloat16 model in bfloat16, where weights of 1 never move by 2^-10."""

import sys
import tempfile

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(vocab_size=16, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 8
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    arguments = TrainingArguments(
        folder,
        bf16=True,
        learning_rate=2.0**-10,
        lr_scheduler_type="constant",
        max_steps=8,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model, arguments, train_dataset=rows).train()
weight = model.model.norm.weight
seen = int((weight != 1.0).sum())
print("expected: 64 of 64 weights move in eight updates of 2^-10 under mixed precision")
print(f"seen: {seen} of 64, in {weight.dtype}")
sys.exit(seen != 64)
