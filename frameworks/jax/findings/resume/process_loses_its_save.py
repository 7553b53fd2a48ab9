"""A process that returns right after CheckpointManager.save loses the checkpoint, with exit code 0."""

import os
import subprocess
import sys
import tempfile

SCRIPT = """
import sys
import jax.numpy as jnp
import orbax.checkpoint as ocp
manager = ocp.CheckpointManager(sys.argv[1])
manager.save(1, args=ocp.args.StandardSave({"value": jnp.ones(2**20)}))
"""
folder = (temporary := tempfile.TemporaryDirectory()).name
process = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, check=False)
names = sorted(os.listdir(folder))
print("expected: exit code 0, files ['1']")
print(f"seen: exit code {process.returncode}, files {names}")
sys.exit(int(names != ["1"]))
