"""T5's weights under their published names (arXiv 1910.10683), as the tensors that `autoui.py` computes with.

    weights = T5Weights(config)              # config: dict, as T5's config.json; the values are whatever memory holds
    for layer in layers(weights.encoder):    # Layer: norms and matrices of a block, projections of one input together
        ...

The modules hold the tensors only, none of them is ever called. transformers' T5 has the same names and is what the
tests hold the arithmetic to; it is not imported, as that takes longer than all else that a run does before it starts.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lora import weight

FEED_FORWARDS = ("relu", "gated-gelu")  # of v1.0, and of v1.1 and FLAN


class Layer(NamedTuple):
    norm: Tensor
    qkv: Tensor  # [3 H d_kv, d]
    out: Tensor
    cross_norm: Tensor | None  # those of the decoder
    cross_q: Tensor | None
    cross_kv: Tensor | None  # [2 H d_kv, d]
    cross_out: Tensor | None
    ff_norm: Tensor
    ff_in: tuple[Tensor, ...]  # one matrix, or two where the activation is gated
    ff_out: Tensor


class Linear(nn.Linear):
    """Without the random start, which is overwritten anyway."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


def empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


def tree(**children: nn.Module | nn.Parameter) -> nn.Module:
    """A module that has these children and computes nothing."""
    module = nn.Module()
    for name, child in children.items():
        setattr(module, name, child)
    return module


class T5Weights(nn.Module):
    """shared, encoder, decoder and lm_head; `tied`: lm_head is shared. ValueError: an activation that no T5 has."""

    def __init__(self, config: dict):
        super().__init__()
        self.heads, self.d_kv, self.eps = config["num_heads"], config["d_kv"], config.get("layer_norm_epsilon", 1e-6)
        self.buckets = config.get("relative_attention_num_buckets", 32)
        self.max_distance = config.get("relative_attention_max_distance", 128)
        self.feed_forward = config.get("feed_forward_proj", "relu")
        if self.feed_forward not in FEED_FORWARDS:
            raise ValueError(f"feed_forward_proj {self.feed_forward!r}: use one of {', '.join(FEED_FORWARDS)}")
        self.tied = config.get("tie_word_embeddings", True) is not False
        d_model, depth = config["d_model"], config["num_layers"]
        deep = config.get("num_decoder_layers")
        self.shared = Embedding(config["vocab_size"], d_model)
        self.encoder = self._stack(d_model, config["d_ff"], depth, cross=False)
        self.decoder = self._stack(d_model, config["d_ff"], depth if deep is None else deep, cross=True)
        self.lm_head = Linear(d_model, config["vocab_size"], bias=False)
        if self.tied:
            self.lm_head.weight = self.shared.weight

    def _stack(self, d_model: int, d_ff: int, depth: int, cross: bool) -> nn.Module:
        inner, linear = self.heads * self.d_kv, partial(Linear, bias=False)

        def attention() -> nn.Module:
            return tree(**{name: linear(d_model, inner) for name in "qkv"}, o=linear(inner, d_model))

        blocks = nn.ModuleList()
        for number in range(depth):
            parts = [tree(SelfAttention=attention(), layer_norm=tree(weight=empty(d_model)))]
            if number == 0:  # the other blocks use this one's
                parts[0].SelfAttention.relative_attention_bias = Embedding(self.buckets, self.heads)
            if cross:
                parts.append(tree(EncDecAttention=attention(), layer_norm=tree(weight=empty(d_model))))
            names = ("wi_0", "wi_1") if self.feed_forward.startswith("gated") else ("wi",)
            dense = tree(**{name: linear(d_model, d_ff) for name in names}, wo=linear(d_ff, d_model))
            parts.append(tree(DenseReluDense=dense, layer_norm=tree(weight=empty(d_model))))
            blocks.append(tree(layer=nn.ModuleList(parts)))
        return tree(block=blocks, final_layer_norm=tree(weight=empty(d_model)))


def layers(stack: nn.Module) -> list[Layer]:
    """The weights of a stack, projections of the same input side by side."""
    found = []
    for block in stack.block:
        first, last = block.layer[0], block.layer[-1]
        own, dense = first.SelfAttention, last.DenseReluDense
        cross: tuple = (None, None, None, None)
        if len(block.layer) == 3:
            c = block.layer[1].EncDecAttention
            kv = fused_weight(weight(c.k), weight(c.v))
            cross = (block.layer[1].layer_norm.weight, weight(c.q), kv, weight(c.o))
        ff_in = (dense.wi_0.weight, dense.wi_1.weight) if hasattr(dense, "wi_1") else (dense.wi.weight,)
        qkv = fused_weight(weight(own.q), weight(own.k), weight(own.v))
        found.append(
            Layer(first.layer_norm.weight, qkv, weight(own.o), *cross, last.layer_norm.weight, ff_in, dense.wo.weight)
        )
    return found


def fused_weight(*weights: Tensor) -> Tensor:
    """Weights of the same input as one matrix, a view where they lie side by side in memory; differentiable."""
    first, end = weights[0], weights[0].data_ptr()
    for w in weights:
        if w.data_ptr() != end or w.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(weights)
        end += w.nbytes
    return _FusedView.apply(*weights)


class _FusedView(torch.autograd.Function):
    """Neither the matrix nor its gradient is copied: forward gives a view of all, backward one to each."""

    @staticmethod
    def forward(ctx, *weights: Tensor) -> Tensor:
        ctx.rows, first = [len(w) for w in weights], weights[0].detach()
        return first.as_strided((sum(ctx.rows), first.shape[1]), (first.shape[1], 1))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient.split(ctx.rows)


def flatten_parameters(module: nn.Module) -> None:
    """Moves all parameters into one piece of memory, in their order, unless they lie so or differ in type.

    So the projections of one input are one matrix (`fused_weight`), and all weights are published in one copy, which
    goes past the caches: two thirds of the time of a copy for each of them.
    """
    parameters = list(module.parameters())
    first, end, together = parameters[0], parameters[0].data_ptr(), True
    for p in parameters:
        if p.dtype != first.dtype or p.device != first.device:
            return
        together, end = together and p.data_ptr() == end, p.data_ptr() + p.nbytes
    if together:
        return
    flat = torch.empty(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        part.copy_(p.detach().reshape(-1))
        p.data = part.view(p.shape)


def relative_buckets(length: int, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """T5's bucket of each (query, key) pair, int64 [length, length]: exact nearby, then logarithmic."""
    position = torch.arange(length)
    offset = position[None, :] - position[:, None]  # key - query
    if bidirectional:
        buckets //= 2
        start, distance = (offset > 0) * buckets, offset.abs()
    else:
        start, distance = 0, (-offset).clamp(min=0)
    exact = buckets // 2
    scale = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (scale * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(distance < exact, distance, far)
