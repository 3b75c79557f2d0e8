"""Several learner processes, one update: each takes a share of every batch, and all hold the same weights.

    torchrun --standalone --nproc-per-node 2 run_distrl.py --num-workers 32         # two processes on this machine
    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 run_distrl.py --device cuda

The first process (rank 0) is the run: it owns phones, replay, journal, checkpoints. It draws every batch as one process
would and deals it out; the others do nothing but `follow`. All make the same calls in the same order, so `Learner` is
the same code everywhere, and with R shares S_r of a batch of N steps

    loss = 1/N sum over all steps = sum_r |S_r|/N mean over S_r,        gradient = sum_r (gradient of that term)

which is what one process computes on the joint batch: shares are weighted by their number of steps (V_traj's loss: of
trajectories), never averaged as equals. Two things are joint before a gradient is taken: the deviation that advantages
are divided by, and whether everything is finite (a step is skipped by all or by none). Priorities and metrics come back
to rank 0. A batch travels to its processes as pickles: run this among machines that trust each other.

Over gloo on CPUs, NCCL for what is on GPUs. **Run: two gloo processes on one machine, equal to one process with the
joint batch to 1e-5 (tests/test_data_parallel.py). Not run: NCCL, GPUs, several machines.**

Departs from torch's DistributedDataParallel, which averages gradients as if shares were equal, wants one forward pass
of one module, and overlaps its all-reduce with the backward pass; ours starts when that has ended.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from run_folder import UsageError

PATIENCE = timedelta(days=30)  # nothing is learnt while phones collect: followers wait; a dead peer closes its socket
PIECE = 2**23  # numbers in one all-reduce, 32 MB


class Team:
    """The learner processes of a run, seen from one of them."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        self._open = False

    @classmethod
    def from_environment(cls) -> Team | None:
        """As torchrun started this process; None: it is the only one."""
        size, rank = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
        if size in ("", "1"):
            return None
        if not (size.isdecimal() and rank.isdecimal()):
            raise UsageError(f"WORLD_SIZE={size} RANK={rank}: torchrun sets both: start with it, or unset WORLD_SIZE")
        return cls(int(rank), int(size))

    def check(self, args) -> None:
        """UsageError: flags that do not go with several learners."""
        if args.run.serial:
            raise UsageError(f"--serial under torchrun ({self.size} processes): it is one process: leave out either")
        if args.algorithm.batch_trajectories < self.size:
            raise UsageError(f"--batch-trajectories {args.algorithm.batch_trajectories}: {self.size} learners need at "
                             "least one each")  # fmt: skip

    def join(self, learner, device: torch.device) -> None:
        """Meet the others, and take rank 0's networks, optimisers and counters. While all is on the CPU."""
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", rank=self.rank, world_size=self.size,
            timeout=PATIENCE,
        )  # fmt: skip
        self._open = True
        learner.load_networks(self._spread(learner.networks()))
        learner.team = self

    def _spread(self, state: dict) -> dict:
        """Rank 0's nested dicts and lists of tensors and numbers, everywhere."""
        found: list[Tensor] = []

        def hollow(x):  # tensors travel apart, each as it is
            if isinstance(x, Tensor):
                found.append(x)
                return torch.empty_like(x, device="meta")
            if isinstance(x, dict):
                return {key: hollow(value) for key, value in x.items()}
            return [hollow(value) for value in x] if isinstance(x, list) else x

        def filled(x):
            if isinstance(x, Tensor):
                tensor = found.pop(0) if self.rank == 0 else torch.empty_like(x, device="cpu")
                dist.broadcast(tensor.contiguous() if self.rank == 0 else tensor, 0)
                return tensor
            if isinstance(x, dict):
                return {key: filled(value) for key, value in x.items()}
            return [filled(value) for value in x] if isinstance(x, list) else x

        shape = [hollow(state) if self.rank == 0 else None]
        dist.broadcast_object_list(shape, 0)
        return filled(shape[0])

    # ------------------------------------------------------------------ one update

    def begin(self, progress: float | None) -> float | None:
        """An update begins, with rank 0's share of the training budget; None: there are no more."""
        said = [progress]
        dist.broadcast_object_list(said, 0)
        return said[0]

    def deal(self, ids, trajectories) -> tuple:
        """Rank 0's batch dealt out, long and short ones alike: (ids, trajectories, shares of steps and of them)."""
        hands: list | None = None
        if self.rank == 0:
            order = sorted(range(len(ids)), key=lambda i: len(trajectories[i]))
            steps = sum(map(len, trajectories))
            hands = []
            for share in (order[rank :: self.size] for rank in range(self.size)):
                hand = [trajectories[i] for i in share]
                hands.append((np.asarray(ids)[share], hand, sum(map(len, hand)) / steps, len(hand) / len(ids)))
        mine = [None]
        dist.scatter_object_list(mine, hands, 0)
        return mine[0]

    def sum(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes the sum of all processes' ones."""
        while tensors:
            taken, size = 0, 0
            while taken < len(tensors) and (not taken or size + tensors[taken].numel() <= PIECE):
                size += tensors[taken].numel()
                taken += 1
            piece, tensors = tensors[:taken], tensors[taken:]
            flat = torch.cat([tensor.reshape(-1) for tensor in piece])
            dist.all_reduce(flat)
            for tensor, part in zip(piece, flat.split([tensor.numel() for tensor in piece]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def mean(self, values: Tensor, share: float) -> Tensor:
        """The joint mean of what all have [N_r], when this process has that share of it."""
        total = values.mean() * share
        self.sum([total])
        return total

    def all(self, flag: bool) -> bool:
        """Is it so everywhere?"""
        missing = torch.tensor(float(not flag))
        dist.all_reduce(missing)
        return not missing

    def gather(self, found) -> list | None:
        """What each process has found, in order of rank; None on the others."""
        everything = [None] * self.size if self.rank == 0 else None
        dist.gather_object(found, everything, 0)
        return everything

    def merge(self, metrics: dict[str, float], steps: int, trajectories: int) -> dict[str, float]:
        """The metrics of the joint batch from those of its shares; on the other processes, their own."""
        rows = self.gather((metrics, steps, trajectories))
        if not rows:
            return metrics
        joint = {}
        for name in metrics:
            numbers = np.array([row[0].get(name, np.nan) for row in rows])
            weights = np.array([row[2 if name == "losses/trajectory_value_loss" else 1] for row in rows], float)
            if name == "losses/grad_norm":  # of the joint gradient already
                joint[name] = float(numbers[0])
            elif name == "stats/rho_max":
                joint[name] = float(numbers.max())
            elif name == "stats/ess":  # (sum rho)^2 / sum rho^2 / N
                sums = np.array([row[0].get("stats/rho_mean", np.nan) for row in rows]) * weights
                joint[name] = float(sums.sum() ** 2 / (sums**2 / (numbers * weights)).sum() / weights.sum())
            else:
                joint[name] = float((numbers * weights).sum() / weights.sum())
        return joint

    def close(self) -> None:
        """Rank 0 has no more updates: the others leave. Not after an update that failed, in which they failed too."""
        if self._open:
            self._open = False
            if self.rank == 0:
                self.begin(None)
            dist.destroy_process_group()


def follow(args, team: Team) -> int:
    """A learner process other than the first: its shares of rank 0's batches until there are no more. The exit code."""
    from devices import num_threads, own_device
    from learner import Learner
    from loaders import load_policy, load_text_encoder
    from policy_check import check_policy

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # rank 0 is asked to stop, saves, and says when
        signal.signal(signum, signal.SIG_IGN)
    torch.set_num_threads(1)  # else loading starts threads that stay
    torch.set_flush_denormal(True)
    team.check(args)
    check_policy(args.policy)
    policy, _ = load_policy(args)
    torch.set_num_threads(num_threads(policy))
    device = own_device(args.policy.device)
    learner = Learner(policy, args.algorithm, seed=args.run.seed, text_encoder=load_text_encoder(args))
    team.join(learner, device)
    learner.to(device)
    while (progress := team.begin(None)) is not None:
        learner.progress = progress
        learner.update()
    team.close()
    return 0
