"""`python -m tools.benchmarks.sweeps.ray_nodes TRIAL`: sweeps on a Ray cluster of processes of this machine.

`losses` kills a node and a worker while their cells run, and adds a node. `scaling` and `cost` take cells that sleep.
Ray has to be installed (`pip install ray`); everything listens on the loopback.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from conformance.sweep.cells import SweepCell
from conformance.sweep.driver import SweepSettings, VersionSweep
from conformance.sweep.engines.ray_cluster import RayEngine
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import CellRequest, CellResult
from tools.benchmarks.sweeps.checkouts import SweptCheckout, processes
from tools.benchmarks.sweeps.kills import PLAN, VERSIONS

HERE = "127.0.0.1"
_START_S = 0.6
"""Seconds for each worker of Ray that starts, so that the first cells need all of them."""

CELLS = len(VERSIONS) + 3


def sleep(content: bytes) -> bytes:
    """Sleeps as many seconds as the cell's version says."""
    time.sleep(float(msgspec.json.decode(content, type=CellRequest).cell.version.partition("/")[0]))
    return msgspec.json.encode(CellResult("judged"))


@contextmanager
def cluster(*cpus: int) -> Iterator[Any]:
    """A cluster of one node process for each number of processors, the head first."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cpus[0], "include_dashboard": False, "node_ip_address": HERE}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for each in cpus[1:]:
            made.add_node(num_cpus=each, node_ip_address=HERE)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def losses(folder: Path) -> list[str]:
    """The sweep of the trial of kills on three nodes; returns what does not hold."""
    checkout = SweptCheckout(folder, {"RAY_TMPDIR": "/tmp"})
    checkout.make(VERSIONS, PLAN)

    def ended() -> int:
        return checkout.kinds("ray").get("ended", 0)

    os.environ.update(checkout.environment("ray") | {"PYTHONPATH": str(checkout.root)})
    with cluster(1, 1, 1) as nodes:
        words = ("--engine=ray", f"--address={nodes.address}", "--fresh")
        with checkout.sweeping("ray", *words) as process:
            _wait_for(lambda: checkout.processes(" -m pytest ") >= 3, process, folder / "ray.log")
            nodes.remove_node([*nodes.worker_nodes][-1], allow_graceful=False)
            print(f"a node is killed: {checkout.kinds('ray')}", flush=True)
            nodes.add_node(num_cpus=1, node_ip_address=HERE)
            before = ended()
            _wait_for(
                lambda: ended() > before and checkout.processes(" pytest ") > 0 and bool(_workers()),
                process,
                folder / "ray.log",
            )
            worker = _workers()[0]
            os.kill(worker, signal.SIGKILL)
            print(f"a worker is killed: {checkout.kinds('ray')}", flush=True)
            status = process.wait()
    left = checkout.processes()
    with checkout.sweeping("whole", "--jobs=2") as process:
        print(f"the same on this machine: status {process.wait()}", flush=True)
    journal = checkout.journal("ray")
    cells = Counter(str(line["cell"]) for line in journal if line["kind"] == "ended")
    lost = sum(int(str(line["attempts"])) - 1 for line in journal if line["kind"] == "ended")
    same = checkout.verdicts("whole") == checkout.verdicts("ray")
    print(
        f"status {status}, {len(cells)} cells, {lost} lost and queued again, verdicts as local ones: {same}", flush=True
    )
    problems = [] if status == 0 else [f"the sweep ended with {status}: {(folder / 'ray.log').read_text()[-2000:]}"]
    problems += [] if {*cells.values()} == {1} and len(cells) == CELLS else [f"cells arrived {cells.most_common(3)}"]
    problems += [] if same else ["verdicts differ"]
    problems += [] if lost >= 2 else [f"{lost} cells were lost, want at least 2"]
    problems += [f"left: {path.name}" for path in checkout.temporary.iterdir()]
    problems += [f"{left} processes are left"] if left else []
    return problems


class ConnectedRay(RayEngine):
    """An engine that several sweeps use one after the other, so that the workers of the first serve the others."""

    def close(self) -> None:
        """Keeps the connection."""

    def disconnect(self) -> None:
        """Ends the connection."""
        super().close()


def scaling(folder: Path, seconds: float, widths: tuple[int, ...], rounds: int = 4) -> list[str]:
    """Sleeping cells, `rounds` for each of so many workers, which have been started."""
    problems = []
    most = max(widths)
    with cluster(most) as nodes:
        for width in widths:
            engine = ConnectedRay(nodes.address, most / width, work=sleep)
            first = seconds + _START_S * width
            cold, _ = _slept(folder, engine, [first] * width)
            count = width * rounds
            took, _ = _slept(folder, engine, [seconds] * count)
            engine.disconnect()
            share = seconds * count / width / took
            print(
                f"{width} workers: started in {cold - first:.1f} s; {count} cells of {seconds:g} s in {took:.1f} s, "
                f"{share:.3f} of linear",
                flush=True,
            )
            problems += [] if share >= 0.9 else [f"{width} workers reach {share:.3f} of linear, want 0.9"]
    return problems


def cost(folder: Path, count: int = 1000, seconds: float = 0.1, width: int = 4) -> list[str]:
    """What the driver costs for each of many short cells."""
    with cluster(width) as nodes:
        engine = ConnectedRay(nodes.address, work=sleep)
        _slept(folder, engine, [2.0] * width)
        took, processor = _slept(folder, engine, [seconds] * count)
        engine.disconnect()
    ideal = count * seconds / width
    print(
        f"{count} cells of {seconds:g} s on {width} workers: {took:.1f} s, {1e3 * (took - ideal) / count:.2f} ms for "
        f"each more than {ideal:.0f} s; {1e3 * processor / count:.2f} ms of the driver's processor time for each"
    )
    return []


def _slept(folder: Path, engine: ConnectedRay, seconds: list[float]) -> tuple[float, float]:
    """Wall and processor seconds of a sweep of sleeping cells."""
    cells = [SweepCell("reference", "", "", f"{each}/{place}", mode=f"m{place}") for place, each in enumerate(seconds)]
    settings = SweepSettings(Path(tempfile.mkdtemp(dir=folder)))
    run = VersionSweep(SweepPlan("sleep", ()), cells, settings, frozenset(cell.key for cell in cells), lambda *_: None)
    begun, used = time.monotonic(), time.process_time()
    endings = run.run(lambda: engine)
    took = time.monotonic() - begun, time.process_time() - used
    assert len(endings) == len(cells)
    return took


def _wait_for(condition: Callable[[], bool], process: Any, log: Path, limit_s: float = 600.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the sweep ended with {process.poll()} before that: {log.read_text()}")
        time.sleep(0.1)


def _workers() -> list[int]:
    """Workers of Ray that run a cell: the parents of cells' processes."""
    result = []
    for pid, words, _ in processes():
        if "conformance.sweep.cell_process" in words:
            above = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
            if b"ray::" in Path("/proc", str(above), "cmdline").read_bytes():
                result.append(above)
    return result


def main() -> int:
    """Runs a trial; 1 if something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.sweeps.ray_nodes")
    parser.add_argument("trial", choices=["losses", "scaling", "cost"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of a sleeping cell")
    parser.add_argument("--widths", default="1,4,16,64", help="numbers of workers")
    options = parser.parse_args()
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray takes the machine's address for 127.0.0.1
    with tempfile.TemporaryDirectory(prefix="sweeps-") as name:
        folder = Path(name)
        if options.trial == "losses":
            problems = losses(folder)
        elif options.trial == "scaling":
            problems = scaling(folder, options.seconds, tuple(map(int, options.widths.split(","))))
        else:
            problems = cost(folder)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
