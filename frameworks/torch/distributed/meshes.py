"""The block of meshes and pipelines by PyTorch: functions that every rank's process runs."""

import warnings
from collections import OrderedDict
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel

from frameworks.contract import BlockWeights, MeshCase, MeshLayout, MeshUpdate, PipelineCase

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def make_block(weights: BlockWeights) -> nn.Sequential:
    """The undivided block."""
    width, hidden = weights["up.weight"].shape
    norm, up, down = nn.RMSNorm(width, eps=0.0), nn.Linear(width, hidden), nn.Linear(hidden, width)
    block = nn.Sequential(OrderedDict(norm=norm, up=up, relu=nn.ReLU(), down=down))
    block.load_state_dict({name: torch.from_numpy(value.T.copy()) for name, value in weights.items()})
    return block


def divide(layout: MeshLayout, weights: BlockWeights) -> nn.Sequential:
    """The block, divided by a layout's plan over all ranks; "two-meshes" divides the rows alone among several."""
    block, count = make_block(weights), distributed.get_world_size()
    up, down = parallel.ColwiseParallel(), parallel.RowwiseParallel()
    if layout == "two-meshes":
        grid = init_device_mesh("cpu", (count, 1), mesh_dim_names=("data", "model"))
        parallel.parallelize_module(block, grid["model"], {"up": up, "down": down})
        return fully_shard(block, mesh=grid["data"])
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("model",))
    if layout == "sequence":
        up = parallel.ColwiseParallel(input_layouts=Shard(1))
        down = parallel.RowwiseParallel(output_layouts=Replicate())
        whole = parallel.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
        parallel.parallelize_module(block, mesh, whole)
        parallel.parallelize_module(block, mesh, {"norm": parallel.SequenceParallel()})
    return parallel.parallelize_module(block, mesh, {"up": up, "down": down})


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Half the sum of squared errors."""
    return 0.5 * (outputs - targets).square().sum()


def gather(value: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be divided."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def read_axes(block: nn.Module) -> dict[str, int]:
    """The divided axis of each parameter along the mesh of `up` and `down`."""
    axes: dict[str, int] = {}
    for name, value in block.named_parameters():
        if isinstance(value, DTensor) and (value.device_mesh.mesh_dim_names or ("",))[-1] == "model":
            placement = value.placements[-1]
            axes |= {name: value.ndim - 1 - placement.dim} if isinstance(placement, Shard) else {}
    return axes


def update(case: MeshCase) -> tuple[MeshUpdate, ...]:
    """This rank's view of an update."""
    block, norm, refusal = divide(case.layout, case.weights), None, ""
    placements = {"build": read_axes(block)}
    data = distributed.get_world_size() if case.layout == "two-meshes" else 1
    inputs, targets = (torch.from_numpy(a).chunk(data)[distributed.get_rank() % data] for a in case.samples)
    optimizer = torch.optim.SGD(block.parameters(), lr=1.0)
    (half_square(block(inputs), targets) / len(inputs)).backward()
    if case.clip is not None:
        try:
            norm = gather(nn.utils.clip_grad_norm_(block.parameters(), case.clip)).item()
        except RuntimeError as error:
            refusal = f"RuntimeError: {error}"[:200]
    if not refusal:
        optimizer.step()
    placements["update"] = read_axes(block)
    if case.folder is not None:
        checkpoint.save(block.state_dict(), checkpoint_id=case.folder)
        block = divide(case.layout, case.weights)
        state = block.state_dict()
        checkpoint.load(state, checkpoint_id=case.folder)
        block.load_state_dict(state)
        placements["reload"] = read_axes(block)
    after = {name: gather(value).numpy().T.copy() for name, value in block.named_parameters()}
    return (MeshUpdate(after, norm, refusal, placements),)


def reports_unknown_name(weights: BlockWeights) -> bool:
    """Whether a plan that names no module raises or warns."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        parallel.parallelize_module(make_block(weights), mesh, {"upp": parallel.ColwiseParallel()})
    return bool(reported)


def pipeline_gradients(case: PipelineCase) -> BlockWeights:
    """The gradients of this rank's stage."""
    rank, block = distributed.get_rank(), make_block(case.weights)
    module = block[:3] if rank == 0 else block[3:]

    def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return half_square(outputs, targets) / (len(outputs) if case.loss == "mean" else 1)

    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    options: dict[str, Any] = {} if case.scaled else {"scale_grads": False}
    schedule = _SCHEDULES[case.schedule](stage, case.micro_batches, loss_fn=loss_of, **options)
    for inputs, targets in case.steps:
        if rank == 0:
            schedule.step(torch.from_numpy(inputs))
        else:
            schedule.step(target=torch.from_numpy(targets))
    return {name: value.grad.numpy().T.copy() for name, value in module.named_parameters() if value.grad is not None}
