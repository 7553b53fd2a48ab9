"""A save into the file from which the optimizer was loaded with mmap=True ends the process by SIGBUS."""

import os
import subprocess
import sys
import tempfile

PROGRAM = """
import sys, torch
weight = torch.ones(1 << 20, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
weight.sum().backward()
optimizer.step()
for _ in range(2):
    torch.save(optimizer.state_dict(), sys.argv[1])
    optimizer.load_state_dict(torch.load(sys.argv[1], mmap=True))
"""

with tempfile.TemporaryDirectory() as folder:
    completed = subprocess.run([sys.executable, "-c", PROGRAM, os.path.join(folder, "state.pt")], capture_output=True)
print("expected: exit status 0")
print(f"seen: exit status {completed.returncode} (negative: the number of a signal)")
sys.exit(0 if completed.returncode == 0 else 1)
