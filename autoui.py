"""Auto-UI's network: T5 with the image gate, its arithmetic written out for speed.

    network = AutoUINetwork(config)                                       # config: dict, as T5's config.json
    logits = network(input_ids, attention_mask, features, decoder_ids)     # [B, L, V]
    states = network.encode(input_ids, attention_mask, features)           # [B, S, d]
    tokens, logprobs = network.sample(states, attention_mask, steps=64, eos_id=1, uniforms=None)

With encoder states h [B, S, d] of the prompt and the screen's feature x [B, 1408]

    v  = W_image x + b                       image_dense
    a  = MHA(query h, key v, value v)        mha_layer: one head over a single key
    g  = sigmoid(W_gate [h ; a] + b)         gate_dense
    h' = (1 - g) h + g a                     what the decoder attends to

Parameter names are the published ones, so Auto-UI's checkpoints load by name.

Departs from the authors' code:
- what runs is written over the bare weights (`t5.py`) with a key-value cache, because at the small size the
  library's own overhead is most of a token's time (tests hold it to the library's result);
- no dropout anywhere: with it the ratio of an unchanged policy is not 1;
- attention over a single key is the identity, so `a` is computed once for a row, not for each text position.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t5 import Layer, Linear, T5Weights, empty, flatten_parameters, layers, relative_buckets, tree

FEATURE_DIM = 1408
MASKED = -1e9  # added to the score of what may not be attended to
STEP = 7.0  # a head's bias for the place it steps to, at the start
ACTIVATIONS = {"relu": torch.relu, "gated-gelu": partial(F.gelu, approximate="tanh")}


class AutoUINetwork(T5Weights):
    """T5 plus Auto-UI's image layers, under the published parameter names; token ids in, logits out."""

    def __init__(self, config: dict):
        super().__init__(config)
        d_model = config["d_model"]
        self.image_dense = Linear(FEATURE_DIM, d_model)
        self.mha_layer = tree(  # nn.MultiheadAttention's names
            in_proj_weight=empty(3 * d_model, d_model),
            in_proj_bias=empty(3 * d_model),
            out_proj=Linear(d_model, d_model),
        )
        self.gate_dense = Linear(2 * d_model, d_model)
        self.activation = ACTIVATIONS[self.feed_forward]
        self._tables: dict[bool, Tensor] = {}  # a stack's buckets, as long as its longest text so far
        flatten_parameters(self)

    def _apply(self, fn, recurse: bool = True):  # what .to() does, one parameter at a time
        super()._apply(fn, recurse)
        flatten_parameters(self)
        return self

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor, decoder_ids: Tensor
    ) -> Tensor:
        """Logits [B, L, V] of input_ids and attention_mask [B, S], features [B, 1408], decoder_ids [B, L]."""
        return self.head(
            self.decode(self.encode(input_ids, attention_mask, features), attention_mask, decoder_ids)
        )

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), self.eps)

    def _bias(self, stack: nn.Module, length: int) -> Tensor:  # [H, L, L]
        weight = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        bidirectional = stack is self.encoder
        table = self._tables.get(bidirectional)
        if table is None or len(table) < length:
            longest = -(-length // 64) * 64
            with torch.inference_mode(False):  # kept for calls that record gradients, too
                table = relative_buckets(longest, bidirectional, self.buckets, self.max_distance)
            self._tables[bidirectional] = table
        return F.embedding(table[:length, :length].to(weight.device), weight).permute(2, 0, 1)

    def _heads(self, x: Tensor, weight: Tensor, parts: int) -> tuple[Tensor, ...]:  # parts x [B, H, L, d_kv]
        y = F.linear(x, weight).unflatten(-1, (parts, self.heads, self.d_kv))
        return y.permute(2, 0, 3, 1, 4).unbind(0)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:  # [B, L, H d_kv]
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) + bias, -1)  # T5 does not scale by d_kv
        return torch.matmul(weights, v).transpose(1, 2).flatten(2)

    def _feed_forward(self, x: Tensor, layer: Layer) -> Tensor:
        y = self._norm(x, layer.ff_norm)
        inner = self.activation(F.linear(y, layer.ff_in[0]))
        if len(layer.ff_in) == 2:
            inner = inner * F.linear(y, layer.ff_in[1])
        return x + F.linear(inner, layer.ff_out)

    def encode(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> Tensor:
        """States [B, S, d] that the decoder attends to; padding may be on either side."""
        if self.shared.weight.dtype == torch.float16:
            raise ValueError("fp16 overflows in T5's feed-forward (66246 > 65504): use bf16 or fp32")
        x = self.shared(input_ids)
        bias = self._bias(self.encoder, input_ids.shape[1]) + _mask_bias(attention_mask, x.dtype)
        for layer in layers(self.encoder):
            attended = self._attend(*self._heads(self._norm(x, layer.norm), layer.qkv, 3), bias)
            x = self._feed_forward(x + F.linear(attended, layer.out), layer)
        states = self._norm(x, self.encoder.final_layer_norm.weight)
        # One key: its attention weight is 1 whatever the query, so the values alone count.
        d, mha = states.shape[-1], self.mha_layer
        value = F.linear(
            self.image_dense(features.to(x.dtype)), mha.in_proj_weight[2 * d :], mha.in_proj_bias[2 * d :]
        )
        image = mha.out_proj(value)[:, None]  # [B, 1, d]
        gate = self.gate_dense
        g = torch.sigmoid(
            F.linear(states, gate.weight[:, :d]) + F.linear(image, gate.weight[:, d:], gate.bias)
        )
        return states + g * (image - states)

    def decode(self, states: Tensor, attention_mask: Tensor, decoder_ids: Tensor) -> Tensor:
        """Decoder states [B, L, d], teacher-forced: row i has seen decoder_ids[:, :i + 1]."""
        x, length = self.shared(decoder_ids), decoder_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        bias = self._bias(self.decoder, length).masked_fill(future, MASKED)
        cross_bias = _mask_bias(attention_mask, x.dtype)
        for layer in layers(self.decoder):
            attended = self._attend(*self._heads(self._norm(x, layer.norm), layer.qkv, 3), bias)
            x = x + F.linear(attended, layer.out)
            (q,) = self._heads(self._norm(x, layer.cross_norm), layer.cross_q, 1)
            attended = self._attend(q, *self._heads(states, layer.cross_kv, 2), cross_bias)
            x = self._feed_forward(x + F.linear(attended, layer.cross_out), layer)
        return self._norm(x, self.decoder.final_layer_norm.weight)

    def head(self, x: Tensor) -> Tensor:
        """Logits [..., V], float32."""
        return F.linear(x * x.shape[-1] ** -0.5 if self.tied else x, self.lm_head.weight).float()

    @torch.inference_mode()
    def sample(
        self,
        states: Tensor,
        attention_mask: Tensor,
        *,
        steps: int,
        eos_id: int,
        temperature: float = 1.0,
        uniforms: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Up to `steps` tokens a row: token ids [B, T] and their log-probs [B, T]; 0 after a row's EOS.

        uniforms: float64 [B, steps] in [0, 1), one a token, turned into tokens by the inverse of the
        cumulative distribution; None takes the likeliest token.
        """
        n, heads, weight = len(states), self.heads, self.shared.weight
        bmm_plus, mm_plus, kind = torch.baddbmm, torch.addmm, weight.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            # It would round these sums, which `decode` has in float32.
            bmm_plus, mm_plus = lambda x, a, b: x + torch.bmm(a, b), lambda x, a, b: x + torch.mm(a, b)
        blocks = layers(self.decoder)
        cross = [self._heads(states, layer.cross_kv, 2) for layer in blocks]  # K, V of the prompt
        cross = [
            (k.flatten(0, 1).transpose(1, 2).contiguous(), v.flatten(0, 1).contiguous()) for k, v in cross
        ]
        cross_bias = (
            _mask_bias(attention_mask, weight.dtype).expand(n, heads, 1, -1).flatten(0, 1).contiguous()
        )
        bias = self._bias(self.decoder, steps).repeat(n, 1, 1)  # [n H, steps, steps]
        cache = weight.new_zeros(len(blocks), 2, n * heads, steps, self.d_kv)
        tokens = torch.zeros(steps, n, dtype=torch.long, device=weight.device)
        logprobs = torch.zeros(steps, n, device=weight.device)
        rows = torch.arange(n, device=weight.device)  # rows still being written
        token = torch.zeros_like(rows)  # the pad token starts the decoder
        done = torch.zeros_like(rows, dtype=torch.bool)
        for t in range(steps):
            x = F.embedding(token, weight)
            for i, layer in enumerate(blocks):
                qkv = (
                    F.linear(self._norm(x, layer.norm), layer.qkv)
                    .view(len(x), 3, heads, self.d_kv)
                    .transpose(0, 1)
                )
                q, kv = qkv[0].reshape(-1, 1, self.d_kv), cache[i]
                kv[:, :, t] = qkv[1:].flatten(1, 2)
                scores = bmm_plus(bias[:, t : t + 1, : t + 1], q, kv[0, :, : t + 1].transpose(1, 2))
                x = mm_plus(
                    x, torch.bmm(scores.softmax(-1), kv[1, :, : t + 1]).view(len(x), -1), layer.out.t()
                )
                q = F.linear(self._norm(x, layer.cross_norm), layer.cross_q).view(-1, 1, self.d_kv)
                scores = bmm_plus(cross_bias, q, cross[i][0]).softmax(-1)
                x = mm_plus(x, torch.bmm(scores, cross[i][1]).view(len(x), -1), layer.cross_out.t())
                x = self._feed_forward(x, layer)
            logits = self.head(self._norm(x, self.decoder.final_layer_norm.weight))
            logp = torch.log_softmax(logits / temperature, -1)
            if uniforms is None:
                token = logp.argmax(-1)
            else:
                cdf = logp.exp().cumsum(-1, dtype=torch.float64)
                u = uniforms[rows, t, None] * cdf[:, -1:]
                token = torch.searchsorted(cdf, u, right=True).clamp_(max=logp.shape[-1] - 1)[:, 0]
            live = ~done
            tokens[t, rows] = token * live
            logprobs[t, rows] = logp.gather(1, token[:, None])[:, 0] * live
            done = done | (token == eos_id)
            ended = int(done.sum())
            if ended == len(rows):
                return tokens[: t + 1].t(), logprobs[: t + 1].t()
            if 2 * ended >= len(rows) > 4:  # go on with the unfinished rows only
                keep = live.new_ones(len(rows)).logical_xor(done).nonzero()[:, 0]
                wide = (keep[:, None] * heads + torch.arange(heads, device=keep.device)).flatten()
                rows, token, done, bias, cross_bias = (
                    rows[keep],
                    token[keep],
                    done[keep],
                    bias[wide],
                    cross_bias[wide],
                )
                cache, cross = cache[:, :, wide], [(k[wide], v[wide]) for k, v in cross]
        return tokens.t(), logprobs.t()


def _mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:  # [B, 1, 1, S]
    return (1 - mask[:, None, None].to(dtype)) * MASKED


@torch.no_grad()
def initialize(network: AutoUINetwork, seed: int) -> None:
    """Random weights for training from nothing: T5's scales, image layers alike, heads that step.

    Relative-position biases: head 0 looks one token back, head 1 one ahead (encoder) or at itself (decoder),
    head 2 nearby, the others anywhere. Copying the goal's words is hardly learned without.
    """
    g, d_model = torch.Generator().manual_seed(seed), network.shared.weight.shape[1]
    for name, p in network.named_parameters():
        if "layer_norm" in name:
            p.fill_(1.0)
        elif name.endswith("bias"):
            p.zero_()
        elif name in ("shared.weight", "lm_head.weight"):
            p.normal_(0.0, 1.0, generator=g)
        elif "relative_attention_bias" in name:
            p.copy_(_stepping_bias(network.buckets, network.heads, "encoder" in name))
        else:  # keeps the size of what goes in; T5 does not scale q k by d_kv, q does
            scale = p.shape[1] ** -0.5 * (network.d_kv**-0.5 if name.endswith("Attention.q.weight") else 1.0)
            p.normal_(0.0, scale, generator=g)
    # The goal must choose what of the screen is let through ("where is Chrome?"): gates that depend strongly on the
    # text and a loud image find icons several times sooner than T5's scales.
    network.image_dense.weight.mul_(4.0)
    network.gate_dense.weight[:, :d_model].mul_(4.0)
    network.gate_dense.weight[:, d_model:].zero_()


def _stepping_bias(buckets: int, heads: int, bidirectional: bool) -> Tensor:  # [buckets, heads]
    bias = torch.zeros(buckets, heads)
    ahead = buckets // 2  # bucket of offset +k is ahead + k, of offset -k is k
    bias[1, 0] = STEP
    if heads > 1:
        bias[ahead + 1 if bidirectional else 0, 1] = STEP
    if heads > 2:
        for k in range(ahead // 2):
            bias[k, 2] = max(0.0, STEP / 2 - k)
            if bidirectional and k:
                bias[ahead + k, 2] = bias[k, 2]
    return bias
