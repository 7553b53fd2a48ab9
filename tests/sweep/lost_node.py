"""Sweeps a toy on a Ray cluster of two node processes, and kills one while its cell runs: every cell arrives once.

`python tests/sweep/lost_node.py`, where Ray is installed (`pip install ray`); everything listens on the loopback.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.wheels import PACKAGE, TOY, offline, site_packages, write_wheel  # noqa: E402

VERSIONS = ("1.0", "2.0", "3.0", "4.0")
PLAN = f"""
selection = "-k 'test_skipped_update_is_atomic or test_overflow_can_be_discarded'"
workers = 1
repeat = false
[[cells]]
framework = "{TOY}"
versions = [">=1"]
modes = ["emulated"]
"""
LOOPBACK = "127.0.0.1"
LIMIT_S = 600.0


def main() -> int:
    """Run the trial; return 1 if it fails."""
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="sweep-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
        for version in VERSIONS:
            write_wheel(folder / "wheels", PACKAGE, version)
        os.environ.update(offline(folder / "wheels"), CONFORMANCE_SUITE_PACKAGES=site_packages())
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        os.environ.update(TMPDIR=str(folder / "tmp"), RAY_TMPDIR=name, PYTHONPATH=path)
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray takes the machine's address for the loopback
        head = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": LOOPBACK}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            node = cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK)
            cluster.wait_for_nodes()
            return _trial(folder, cluster, node)
        finally:
            cluster.shutdown()


def _trial(folder: Path, cluster: object, node: object) -> int:
    argv = [sys.executable, "-m", "conformance", "sweep", str(folder / "plan.toml"), "--engine=ray"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}  # type: ignore[attr-defined]
    process = subprocess.Popen([*argv, f"--output={folder / 'sweep'}"], cwd=ROOT, env=environment)
    end = time.monotonic() + LIMIT_S
    while len([*(folder / "tmp").glob("conformance-*/output.log")]) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
    print("a node is killed", flush=True)
    status = process.wait(LIMIT_S)
    cells = json.loads((folder / "sweep" / "outcomes.json").read_bytes())["cells"]
    records = sorted(path.name for path in (folder / "sweep" / "records").iterdir())
    expected = [f"{TOY.replace(':', '.')}-{version}-cpu-emulated.json.gz" for version in VERSIONS]
    passed = (status, records, [cell["outcome"] for cell in cells]) == (0, expected, ["judged"] * len(VERSIONS))
    print(f"status {status}, {len(cells)} cells, {len(records)} records: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
