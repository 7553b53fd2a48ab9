"""Making a second `Accelerator` sets the first one's gradient_accumulation_steps from 4 to the default, 1."""

import sys

from accelerate import Accelerator

first = Accelerator(cpu=True, gradient_accumulation_steps=4)
Accelerator(cpu=True)
print("expected: 4")
print(f"seen: {first.gradient_accumulation_steps}")
sys.exit(0 if first.gradient_accumulation_steps == 4 else 1)
