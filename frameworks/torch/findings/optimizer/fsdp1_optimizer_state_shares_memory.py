"""FSDP1's full optimizer state with cpu_offload=True has Adam's second moment in place of its first."""

import os
import sys
import tempfile

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
from torch import device, distributed, multiprocessing, nn, ones, optim
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel


def train(rank: int, store: str, results: multiprocessing.SimpleQueue) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    model = FullyShardedDataParallel(nn.Linear(4, 1, bias=False), device_id=device("cpu"), use_orig_params=True)
    model(ones(1, 4)).sum().backward()
    optimizer = optim.Adam(model.parameters())
    optimizer.step()
    state = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    results.put((rank, state and round(state["state"]["weight"]["exp_avg"].max().item(), 4)))
    distributed.barrier()


if __name__ == "__main__":
    print("expected:", "[0.1, {}]: rank 0 is given the first moment, a tenth of a gradient of ones")
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (os.path.join(folder, "store"), queue), nprocs=2)
    print("seen:", seen := [value for _, value in sorted(queue.get() for _ in range(2))])
    sys.exit(0 if seen[0] == 0.1 else 1)
