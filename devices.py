"""--device and --server-device: where the learner and the policy server compute, and how numbers get there and back.

    check_device("--device", "cuda:1")               # UsageError: no such GPU, and what to do; CUDA is not touched
    rows = put(array, device)                        # numpy -> tensor there, by way of pinned memory
    host = HostCopy(tensors); host.arrays()          # float32 numpy views of what the tensors hold now

Nothing here initialises CUDA before a tensor is really moved: GPUs are counted through the driver's management
library (torch.cuda.device_count). A run moves its learner when the actors' processes exist (run_distrl.py), so that
none of them can inherit a context, and a run that is refused has never touched the GPU.

**Not run: a real GPU.** Tested: that every tensor of an update, of `act` and of a publication is on the device
asked for, with a second device emulated on the CPU that refuses to be mixed with the first; and the order of things.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from run_folder import UsageError


def check_device(flag: str, name: str, learners: int = 1) -> None:
    """UsageError unless `name` is cpu, cuda or cuda:N and this machine has it, or with `cuda` one for each of its
    learners (torchrun). Leaves CUDA as it is."""
    if name == "cpu":
        return
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if not match:
        raise UsageError(f"{flag} {name}: use cpu, cuda or cuda:N, N the number of a GPU from 0 on")
    if not torch.backends.cuda.is_built():
        raise UsageError(f"{flag} {name}: torch {torch.__version__} is built without CUDA: install one that has it "
                         f"(https://pytorch.org/get-started), or leave out {flag}")  # fmt: skip
    count = torch.cuda.device_count()
    if int(match[1] or 0) >= count:
        here = ", ".join(f"cuda:{i}" for i in range(count)) or "no GPU (see `nvidia-smi`; is CUDA_VISIBLE_DEVICES set?)"
        raise UsageError(f"{flag} {name}: this machine has {here}: name another one, or leave out {flag}")
    if name == "cuda" and learners > count:
        raise UsageError(f"{flag} cuda: {learners} learners on this machine, each takes a GPU, and it has {count}: "
                         f"torchrun --nproc-per-node {count}, or name one for all: {flag} cuda:0")  # fmt: skip


def num_threads(policy) -> int:
    """Threads that torch computes with: one for a small policy; from 20 million weights on this process's share of
    the cores, 8 at most. Small matrices gain nothing from a second thread, and take it from the others.
    """
    if sum(p.numel() for p in policy.parameters()) < 20e6:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))  # that of torchrun


def own_device(name: str) -> torch.device:
    """The device that a flag names; with `cuda`, several learners of a machine (torchrun) take a GPU each."""
    local = int(os.environ.get("LOCAL_RANK", 0)) if "WORLD_SIZE" in os.environ else 0
    return torch.device(f"cuda:{local}" if name == "cuda" else name)


def put(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The numbers as a tensor on `device`; to a GPU through pinned memory, without waiting for the copy."""
    tensor = torch.as_tensor(array)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def host_buffers_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Empty float32 tensors of those shapes on the CPU, side by side in memory, pinned when the others are on a GPU."""
    sizes, pinned = [tensor.numel() for tensor in tensors], tensors[0].device.type == "cuda"
    flat = torch.empty(sum(sizes), dtype=torch.float32, device="cpu", pin_memory=pinned)
    return [part.view(tensor.shape) for part, tensor in zip(flat.split(sizes), tensors, strict=True)]


class HostCopy:
    """float32 arrays of what tensors hold: views of them on the CPU, else pinned copies that are filled when asked."""

    def __init__(self, tensors: Iterable[Tensor]):
        self._tensors = [tensor.detach() for tensor in tensors]
        self.device = self._tensors[0].device
        on_cpu = self.device.type == "cpu"
        self._host = self._tensors if on_cpu else host_buffers_like(self._tensors)

    def arrays(self) -> list[np.ndarray]:
        """As they are now; on a GPU the next call overwrites them."""
        if self._host is not self._tensors:
            for host, tensor in zip(self._host, self._tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
        return [host.numpy() for host in self._host]
