"""The accumulation steps of an `Accelerator` after a second one was made."""

import sys

from accelerate import Accelerator

first = Accelerator(cpu=True, gradient_accumulation_steps=4)
Accelerator(cpu=True)
print("expected: 4")
print(f"seen: {first.gradient_accumulation_steps}")
sys.exit(0 if first.gradient_accumulation_steps == 4 else 1)
