"""What goes from the learner to the actors: all weights, or with LoRA (arXiv 2106.09685) the adapters alone.

    W' = W + (alpha / r) B A        A [r, in], B [out, r], B = 0 at the start, alpha = 2 r

on the projections q, k, v, o of every attention layer, as the authors' code has it. W stays as it was loaded.

    add_lora(policy, rank=16, seed=1)                   # learner: only A and B are trained (needs peft)
    weights.publish(policy.published())                 # shared_weights.py: A and B are all that is copied
    receiver = Receiver(AutoUIPolicy.load(path), rank=16)                       # actors: no peft needed
    weights.read(receiver.arrays); receiver.apply()     # W' is written into the actors' network, once an update

peft's own forward is not used: the network's arithmetic is written out (autoui.py), so W' is formed there.

Departs from the authors' code: no dropout (theirs 0.05): with it the ratio of an unchanged policy is not 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from devices import host_buffers_like

PROJECTIONS = ("q", "k", "v", "o")
SCALE = 2.0  # alpha / r
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def add_lora(policy, rank: int, seed: int = 0) -> None:
    """Gives the policy's attention projections adapters of `rank` and freezes everything else. Needs peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError("LoRA needs peft: pip install peft") from error
    config = LoraConfig(
        r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules=list(PROJECTIONS), bias="none"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, policy.network)
    for name, p in policy.network.named_parameters():
        p.requires_grad_("lora_" in name)


def _adapted(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, module) of each projection, with or without adapters, in an order that all processes share."""
    return [(name, m) for name, m in network.named_modules() if name.split(".")[-1] in PROJECTIONS]


def adapters(network: nn.Module) -> list[Tensor]:
    """A and B of every projection in turn; none in a network without adapters."""
    found = [m for _, m in _adapted(network) if hasattr(m, "lora_A")]
    return [layer["default"].weight for m in found for layer in (m.lora_A, m.lora_B)]


def weight(projection: nn.Module) -> Tensor:
    """[out, in]: what the projection multiplies with, its adapter included; differentiable in A and B."""
    if not hasattr(projection, "lora_A"):
        return projection.weight
    a, b = projection.lora_A["default"].weight, projection.lora_B["default"].weight
    return torch.addmm(projection.base_layer.weight, b, a, alpha=SCALE)


def merged(network: nn.Module) -> dict[str, Tensor]:
    """All weights under their published names, adapters added in."""
    state = {n.replace(".base_layer", ""): p for n, p in network.named_parameters() if "lora_" not in n}
    return state | {f"{n}.weight": weight(m) for n, m in _adapted(network) if hasattr(m, "lora_A")}


def changed_base(policy, saved: dict[str, Tensor]) -> list[str]:
    """Names of the weights under the adapters that differ from the saved ones. Actors load them from --policy, so both
    must be the same; without adapters all weights are published, and nothing is compared."""
    if not adapters(policy.network):
        return []
    frozen = {name: p for name, p in policy.named_parameters() if "lora_" not in name}
    return [name for name, p in frozen.items() if not torch.equal(p, saved[name])]


class Receiver:
    """An actor's policy and the float32 arrays that shared memory is read into; `apply` brings them into the network.

    precision "bf16": the network is rounded from float32 at each update, so that small steps are not lost. For a policy
    on a GPU the arrays are pinned, on the way there.
    """

    def __init__(self, policy, precision: str = "fp32", rank: int = 0):
        self.policy = policy.requires_grad_(False)
        self._low_rank, self._rounded = [], []
        if rank:
            for _, module in _adapted(policy.network):
                (rows, columns), base = module.weight.shape, module.weight.detach().clone()
                like = [torch.empty(*s, device=base.device) for s in ((rank, columns), (rows, rank))]
                self._low_rank.append((module.weight, base, *(x.zero_() for x in host_buffers_like(like))))
            arrays = [x for _, _, a, b in self._low_rank for x in (a, b)]
        elif precision == "bf16" or policy.device.type != "cpu":
            parameters = list(policy.parameters())
            copies = zip(parameters, host_buffers_like(parameters), strict=True)
            self._rounded = [(p, copy.copy_(p.detach())) for p, copy in copies]
            arrays = [copy for _, copy in self._rounded]
        else:
            arrays = [p.detach() for p in policy.parameters()]
        policy.to(PRECISIONS[precision])  # the parameters stay the same objects
        self.arrays: list[np.ndarray] = [array.numpy() for array in arrays]

    @torch.no_grad()
    def apply(self) -> None:
        """Call it when `arrays` hold a newer version."""
        for p, base, a, b in self._low_rank:
            p.copy_(torch.addmm(base, b.to(base.device), a.to(base.device), alpha=SCALE))
        for p, copy in self._rounded:
            p.copy_(copy)
