"""A-RIDE: the learning maths of DistRL (arXiv 2410.14803) as pure functions on `[B, T]`. Needs torch only.

A row is a padded trajectory, `mask` says which steps exist. Step t: state s_t, action a_t (a sequence of
tokens), reward r_t, V = success probability, mu the behaviour policy that acted, pi the learner's policy.

    rho_t    = pi(a_t|s_t) / mu(a_t|s_t) = exp(sum of log pi(token) - sum of log mu(token))
    td_t     = r_t + gamma V(s_{t+1}) - V(s_t),              V(s_{t+1}) = 0 where s_{t+1} is terminal
    Retrace    V_ret(s_t) = V(s_t) + sum_{k>=t} gamma^{k-t} (prod_{i=t+1..k} c_i) td_k
               c_i = lam min(1, rho_i)
    advantage  A_t = r_t + gamma V_ret(s_{t+1}) - V(s_t)
    actor      L = -E_mu[rho A log pi] - beta E_mu[H(pi)] + lambda E_mu[P_invalid(a)]
    DPER       p(tau) = w_td mean|delta_t| + w_rho mean rho_t + w_entropy mean H_t,   delta_t = V_ret(s_t) - V(s_t)

Example, one trajectory of three steps that ends in success:

    >>> import torch; from aride import retrace, advantages
    >>> ends, mask = torch.tensor([[False, False, True]]), torch.ones(1, 3, dtype=torch.bool)
    >>> step = dict(rewards=torch.tensor([[0., 0., 1.]]), values=torch.tensor([[.1, .2, .3]]),
    ...             next_values=torch.tensor([[.2, .3, 9.]]), terminated=ends, mask=mask, gamma=.5)
    >>> retrace(**step, log_rho=torch.zeros(1, 3), lam=1.)
    tensor([[0.2500, 0.5000, 1.0000]])

Departs from the paper:
- The advantage uses V_ret of the next state: the paper writes the one-step A with unnamed "corrections".
- rho is clipped (1 by default) and log rho is clamped to +-20: unclipped ratios reach 1e5, then overflow.
- The invalid-action penalty is a score-function term, so that it has a gradient.
- Advantages can be scaled, clipped and their negatives damped (`normalise_advantages`), steps whose ratio
  left a trust region can be dropped (`ratio_trust`), V can learn a soft label. All off by default.
Departs from the authors' code:
- Their "retrace" starts its product at t, which is V-trace with both clips at 1. Here that is `vtrace`.
- Real-valued advantages; theirs are 1[A > 0] (`binarise=True`). Entropy is pi's exact entropy; theirs is
  -log pi of a replayed action. Rewards are used as they are; theirs are `baselines.authors_rewards`.
"""

import functools
import math
import threading

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_RATIO_BOUND = 20.0  # exp(20) = 4.9e8; its square still fits a float32, as the effective sample size needs
# A float's bits times 1 are itself, times 0 they are 0.0, were it NaN or infinite: on views as integers of the same
# width, a flag (1 or 0) selects in a third of the time of `masked_fill`.
_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
_FLAGS = {"mask", "terminated", "truncated", "ends", "invalid"}
_LIMITS = {"gamma": 1, "lam": 1} | dict.fromkeys(("rho_clip", "clip", "ratio_trust", "negative_scale"), math.inf)


def _check(mask: Tensor, **tensors: Tensor | float | None) -> None:
    """All of one shape [B, T], the mask and other flags boolean, numbers in [0, limit]; else a ValueError."""
    tensors["mask"] = mask
    if mask.ndim != 2 or len({x.shape for x in tensors.values() if isinstance(x, Tensor)}) > 1:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items() if isinstance(x, Tensor))
        raise ValueError(f"expected tensors of one shape [B, T], got {shapes}")
    for name, x in tensors.items():
        if name in _FLAGS and x is not None and x.dtype != torch.bool:
            raise ValueError(f"{name} must be torch.bool, got {x.dtype}: pass torch.as_tensor({name}).bool()")
        if x is not None and (high := _LIMITS.get(name)) and (
                (mask & ((x < 0) | (x > high))).any() if isinstance(x, Tensor) else not 0 <= x <= high):
            raise ValueError(f"{name} must be in [0, {high}], got {x}")


def _refuse(mask: Tensor, **tensors: Tensor | float) -> None:
    """Raise, naming the first valid step that is not finite. Called only once a result is not finite."""
    for name, x in ((name, torch.as_tensor(x)) for name, x in tensors.items()):
        # An infinite log-ratio is clamped and harmless.
        bad = mask & (x.isnan() if name in ("log_rho", "behavior_logprob") else ~x.isfinite())
        if bad.any():
            b, t = bad.nonzero()[0].tolist()
            raise ValueError(f"{name} {tuple(x.shape)} has {int(bad.sum())} NaN or infinite values at valid "
                             f"steps, the first at [{b}, {t}]: {float(x[b, t])}")
    raise ValueError(f"the result {tuple(mask.shape)} overflows {next(iter(tensors.values())).dtype}")


def _accurate(x: Tensor) -> Tensor:
    """Half-precision inputs (autocast) are widened: targets are never computed in bf16."""
    return x if x.dtype in _INTEGER else x.float()


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)  # four times as fast as `to` where there is nothing to do


def _td(rewards, values, next_values, live, gamma, td, td_bits) -> Tensor:
    """r_t + gamma V(s_{t+1}) - V(s_t) into `td` [B, T], not masked; `live`: 1 where not terminated, else 0."""
    torch.mul(_as(next_values, td.dtype).view(live.dtype), live, out=td_bits)
    if isinstance(gamma, Tensor):
        return td.mul_(gamma).add_(rewards).sub_(values)
    return torch.add(rewards, td, alpha=gamma, out=td).sub_(values)


def _ratios(log_rho, clip, out) -> Tensor:
    """min(rho, clip) into `out` [B, T], clipped before exp."""
    return torch.clamp(_as(log_rho, out.dtype), -LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, math.log(clip)), out=out).exp_()


def _eagerly(function):
    """As it is within torch.compile, too, which knows neither memory that views share nor the order of `_scan`."""
    @functools.wraps(function)
    def call(*args, **named):
        return (torch.compiler.disable(function) if torch.compiler.is_compiling() else function)(*args, **named)
    return call


@_eagerly
def _scan(now: tuple[Tensor, ...], decay: tuple[Tensor, ...], after: tuple[Tensor, ...], scale: float = 1.0) -> None:
    """y_t = x_t + scale d_t y_{t+1}, backwards in time, in the place of x; takes `_steps`.

    No log-space cumulative products: they are NaN at terminal steps. Zeros in `decay` stop what must not leak.
    """
    if now and now[0].is_cpu:  # the loop below, run by torch one after the other; a GPU would do all at once
        torch._foreach_addcmul_(now, decay, after, value=scale)
        return
    for x, d, y in zip(now, decay, after, strict=True):
        x.addcmul_(d, y, value=scale)


def _steps(x: Tensor, decay: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """x_t, d_t and x_{t+1} of x and decay [B, T]: T-1 columns [B] each, from the last pair of steps on."""
    return x.unbind(1)[-2::-1], decay.unbind(1)[-2::-1], x.unbind(1)[:0:-1]


@functools.lru_cache(maxsize=8)
def _scratch(shape: torch.Size, dtype: torch.dtype, device: torch.device, ahead: bool, thread: int) -> tuple:
    """What `_targets` works in: td, c and decay [B, T], td and decay as integers, two flags, `_steps` of td and decay.

    Kept from call to call, for each thread: making the columns takes longer than the scan. A step's decay starts
    as its own c, or, `ahead`, the next step's: the same memory, one further. Small ones only.
    """
    dtype, size = _accurate(torch.empty(0, dtype=dtype)).dtype, shape.numel()
    integer = _INTEGER[dtype]
    with torch.inference_mode():
        td, line = torch.zeros(shape, dtype=dtype, device=device), torch.zeros(size + 1, dtype=dtype, device=device)
        c, decay = line[:size].view(shape), line[ahead:size + ahead].view(shape)
        keep, live = torch.zeros((2, *shape), dtype=integer, device=device)
        return td, c, decay, td.view(integer), decay.view(integer), keep, live, _steps(td, decay)


@_eagerly
def _targets(rewards, values, next_values, log_rho, terminated, truncated, mask, gamma, lam, rho_clip, c_clip,
             retrace: bool) -> Tensor:
    """V + the discounted sum of corrected td errors, [B, T]: the two targets differ in a few lines."""
    _check(mask, rewards=rewards, values=values, next_values=next_values, log_rho=log_rho,
           terminated=terminated, truncated=truncated, gamma=gamma, lam=lam)
    if not (rho_clip > 0 and c_clip > 0):
        raise ValueError(f"rho_clip and c_clip must be above 0, got {rho_clip} and {c_clip}")
    kept = mask.numel() <= 2**17 and mask.shape[1] <= 2**10 and type(mask) is Tensor  # no FakeTensor
    td, c, decay, td_bits, decay_bits, keep, live, steps = (_scratch if kept else _scratch.__wrapped__)(
        mask.shape, values.dtype, mask.device, retrace, threading.get_ident())
    with torch.inference_mode():  # cheaper calls; `clone`, outside, makes an ordinary tensor again
        keep.copy_(mask)
        live.copy_(terminated).lt_(keep)  # in the mask and not terminated
        _td(rewards, values, next_values, live, gamma, td, td_bits)
        _ratios(log_rho, c_clip, out=c)
        finite = True
        if retrace:
            c.view(keep.dtype).mul_(keep)
            finite = math.isfinite(c.sum())  # no target has the first ratio in it: a NaN would not show
        else:
            td.mul_(c if rho_clip == c_clip else _ratios(log_rho, rho_clip, out=torch.empty_like(c)))
        td_bits.mul_(keep)
        if isinstance(gamma, Tensor):
            decay.mul_(gamma)
        if truncated is not None:
            live.gt_(truncated)
        decay_bits.mul_(live)
        _scan(*steps, scale=lam if isinstance(gamma, Tensor) else lam * gamma)
        td.add_(values)
        td_bits.mul_(keep)
        finite = finite and math.isfinite(td.sum())
    if not finite:
        _refuse(mask, rewards=rewards, values=values, next_values=next_values.masked_fill(terminated, 0.0),
                log_rho=log_rho, gamma=gamma)
    return td.clone()


def retrace(*, rewards: Tensor, values: Tensor, next_values: Tensor, log_rho: Tensor, terminated: Tensor,
            mask: Tensor, gamma: float | Tensor, lam: float, truncated: Tensor | None = None) -> Tensor:
    """Retrace(lambda) targets V_ret(s_t), [B, T]; 0 outside the mask. The paper's: products start at t+1.

    All [B, T]. `next_values` = V(s_{t+1}): ignored where `terminated`, bootstrapped from at any other end of
    a trajectory (its horizon, or the last step under the mask). `truncated` is needed only where several
    trajectories share a row. `gamma` may be [B, T], a discount a step. With rho = 1 these are lambda-returns,
    and with `values` = Q(s_t, a_t), `next_values` = E_pi Q(s_{t+1}, .) they are Retrace's targets for Q
    (Munos et al., arXiv 1606.02647). Targets carry no gradient. A NaN at a valid step is a ValueError.
    """
    return _targets(rewards, values, next_values, log_rho, terminated, truncated, mask, gamma, lam, 1.0, 1.0, True)


def vtrace(*, rewards: Tensor, values: Tensor, next_values: Tensor, log_rho: Tensor, terminated: Tensor,
           mask: Tensor, gamma: float | Tensor, lam: float, truncated: Tensor | None = None,
           rho_clip: float = 1.0, c_clip: float = 1.0) -> Tensor:
    """V-trace targets (IMPALA, arXiv 1802.01561), [B, T]: td errors are weighted, the product starts at t.

        v_t = V(s_t) + sum_{k>=t} gamma^{k-t} (prod_{i=t..k-1} c_i) min(rho_clip, rho_k) td_k,
        c_i = lam min(c_clip, rho_i)

    Arguments as in `retrace`. With both clips at 1 this is what the authors' code computes.
    """
    return _targets(rewards, values, next_values, log_rho, terminated, truncated, mask, gamma, lam,
                    rho_clip, c_clip, retrace=False)


@torch.no_grad()
def discounted_returns(*, rewards: Tensor, mask: Tensor, gamma: float | Tensor, ends: Tensor | None = None) -> Tensor:
    """Monte-Carlo returns G_t = r_t + gamma G_{t+1}, [B, T], without bootstrap.

    `ends` [B, T] (terminated | truncated) is needed only where several trajectories share a row. The label of
    V: 1[G > 0] (hard), or G itself (soft), the only one that is consistent with gamma < 1.
    """
    _check(mask, rewards=rewards, ends=ends, gamma=gamma)
    outside = ~mask
    x = _accurate(rewards).masked_fill(outside, 0.0)
    decay = torch.ones_like(x).mul_(gamma).masked_fill_(outside if ends is None else outside | ends, 0.0)
    _scan(*_steps(x, decay))  # x becomes the returns
    if not math.isfinite(x.sum()):
        _refuse(mask, rewards=rewards, gamma=gamma)
    return x.masked_fill_(outside, 0.0)


@torch.no_grad()
def td_errors(*, rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, mask: Tensor,
              gamma: float | Tensor) -> Tensor:
    """td_t = r_t + gamma V(s_{t+1}) - V(s_t), [B, T]; 0 outside the mask."""
    _check(mask, rewards=rewards, values=values, next_values=next_values, terminated=terminated, gamma=gamma)
    td = torch.empty_like(_accurate(values))
    live = (~terminated).to(_INTEGER[td.dtype])
    _td(rewards, values, next_values, live, gamma, td, td.view(live.dtype)).masked_fill_(~mask, 0.0)
    if not math.isfinite(td.sum()):
        _refuse(mask, rewards=rewards, values=values, next_values=next_values.masked_fill(terminated, 0.0), gamma=gamma)
    return td


@torch.no_grad()
def advantages(*, rewards: Tensor, values: Tensor, next_values: Tensor, targets: Tensor, terminated: Tensor,
               mask: Tensor, gamma: float | Tensor, truncated: Tensor | None = None) -> Tensor:
    """A_t = r_t + gamma V_ret(s_{t+1}) - V(s_t), [B, T]; `targets` = V_ret from `retrace` or `vtrace`.

    At a trajectory's last step V_ret(s_{t+1}) is `next_values`, and 0 if terminated. `targets=values` with
    matching `next_values` gives the one-step advantage of the paper's formula.
    """
    _check(mask, rewards=rewards, values=values, next_values=next_values, targets=targets,
           terminated=terminated, truncated=truncated)
    if not math.isfinite(targets.masked_fill(~mask, 0.0).sum()):
        _refuse(mask, targets=targets)
    follows = torch.zeros_like(mask)  # [B, T]: t+1 is a step of the same trajectory
    follows[:, :-1] = mask[:, 1:]
    if truncated is not None:
        follows &= ~truncated
    return td_errors(rewards=rewards, values=values, next_values=torch.where(follows, targets.roll(-1, 1),
                     next_values), terminated=terminated, mask=mask, gamma=gamma)


@torch.no_grad()
def normalise_advantages(*, advantage: Tensor, mask: Tensor, clip: float = 3.0, negative_scale: float = 1.0,
                         eps: float = 1e-4, mean_square: Tensor | None = None) -> Tensor:
    """Divide by the batch's deviation about 0, clip to +-clip, scale negatives by `negative_scale`; [B, T].

    Not centred, so that A's sign stays, and with it what is reinforced. Damped negatives (0.3, say) keep a policy near
    its start. `mean_square`: that of A in the whole batch, when this is a share of one.
    """
    _check(mask, advantage=advantage, clip=clip, negative_scale=negative_scale)
    advantage = _accurate(advantage)
    valid = advantage[mask]
    deviation = (valid.square().mean() if mean_square is None else mean_square).sqrt()
    if len(valid) and not math.isfinite(deviation + valid.sum()):
        _refuse(mask, advantage=advantage)
    scaled = (advantage / (deviation + eps)).clamp(-clip, clip)
    return torch.where(scaled < 0, negative_scale * scaled, scaled).masked_fill(~mask, 0.0)


@torch.no_grad()
def importance_ratio(*, logprob: Tensor, behavior_logprob: Tensor, mask: Tensor) -> Tensor:
    """rho, [B, T], from log-probs summed over tokens; log rho clamped to +-20; 0 outside the mask."""
    _check(mask, logprob=logprob, behavior_logprob=behavior_logprob)
    log_rho = (_accurate(logprob) - _accurate(behavior_logprob)).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    rho = log_rho.exp_().masked_fill_(~mask, 0.0)
    if not math.isfinite(rho.sum()):
        _refuse(mask, logprob=logprob, behavior_logprob=behavior_logprob)
    return rho


def actor_loss(*, logprob: Tensor, behavior_logprob: Tensor, advantage: Tensor, entropy: Tensor,
               invalid: Tensor, mask: Tensor, entropy_coef: float, invalid_coef: float, rho_clip: float = 1.0,
               ratio_trust: float | None = None, binarise: bool = False) -> tuple[Tensor, dict[str, float]]:
    """The A-RIDE actor loss, a mean over valid steps; returns (loss, metrics). All tensors [B, T].

        -mean(w A log pi) - entropy_coef mean(H) + invalid_coef mean(w 1[invalid] log pi)
        w = min(rho, rho_clip), a constant for the gradient

    `logprob`: log pi(a_t|s_t) summed over the tokens, `entropy`: pi's exact entropy; gradients flow through
    these two only. `behavior_logprob`: log mu. `invalid` (bool): the action could not be parsed or done; the
    last term's gradient is that of P_invalid. `rho_clip=math.inf` clips nothing.
    `ratio_trust=b`: a step leaves the policy term once its ratio has left [1-b, 1+b] on the side to which its
    advantage pushes (PPO's rule); one that would be pulled back stays. `binarise`: A becomes 1[A > 0].
    metrics: policy_loss, entropy, invalid_penalty (P_invalid's estimate times its coefficient), rho_mean,
    rho_max, rho_clipfrac, ess (effective sample size / steps), trust_dropped (fraction of steps).
    """
    _check(mask, logprob=logprob, behavior_logprob=behavior_logprob, advantage=advantage, entropy=entropy,
           invalid=invalid, rho_clip=rho_clip, ratio_trust=ratio_trust)
    if not mask.any():
        raise ValueError(f"mask {tuple(mask.shape)} selects no step: drop the batch")
    logp, bad = _accurate(logprob[mask]), invalid[mask]  # [N] from here on
    log_rho = (logp - behavior_logprob[mask]).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    rho = log_rho.exp()
    weight = rho.clamp(max=rho_clip)
    gain = _accurate(advantage[mask]).detach()
    if binarise:
        gain = torch.where(gain.isnan(), gain, (gain > 0).to(gain.dtype))
    dropped = torch.zeros_like(bad)
    if ratio_trust is not None:
        dropped = torch.where(gain > 0, rho > 1 + ratio_trust, (gain < 0) & (rho < 1 - ratio_trust))
    policy_loss = -(weight * gain * logp).masked_fill(dropped, 0.0).mean()
    mean_entropy = _accurate(entropy[mask]).mean()
    loss = policy_loss - entropy_coef * mean_entropy + invalid_coef * (weight * bad * logp).mean()
    if not (math.isfinite(loss.detach()) and math.isfinite(rho.sum())):
        _refuse(mask, logprob=logprob.detach(), behavior_logprob=behavior_logprob,
                advantage=advantage.detach(), entropy=entropy.detach())
    metrics = {
        "policy_loss": policy_loss, "entropy": mean_entropy, "invalid_penalty": invalid_coef * (weight * bad).mean(),
        "rho_mean": rho.mean(), "rho_max": rho.max(), "rho_clipfrac": (rho > rho_clip).float().mean(),
        "ess": rho.sum().square() / rho.square().sum() / len(rho), "trust_dropped": dropped.float().mean(),
    }
    return loss, {name: float(x.detach()) for name, x in metrics.items()}


def step_values(logits: Tensor) -> Tensor:
    """V = min of the two heads' success probabilities; [..., 2] -> [...]."""
    return torch.sigmoid(logits.amin(-1))  # sigmoid is monotone: the min of the logits first


def value_loss(*, logits: Tensor, targets: Tensor, mask: Tensor, soft: bool = False) -> tuple[Tensor, dict[str, float]]:
    """Binary cross-entropy of V_step, mean over valid steps and both heads. logits [B, T, 2], targets [B, T].

    soft=False: the label is 1[target > 0] (paper and code, with Monte-Carlo returns as targets).
    soft=True: the label is clip(target, 0, 1), for V_ret or discounted returns.
    """
    _check(mask, targets=targets)
    if logits.shape != (*mask.shape, 2):
        raise ValueError(f"expected logits [B, T, 2] for mask {tuple(mask.shape)}, got {tuple(logits.shape)}")
    if not mask.any():
        raise ValueError(f"mask {tuple(mask.shape)} selects no step: drop the batch")
    target = _accurate(targets[mask]).detach()  # [N]
    if target.isnan().any():
        _refuse(mask, targets=targets)
    label = target.clamp(0.0, 1.0) if soft else (target > 0).to(target.dtype)
    valid = _accurate(logits[mask])  # [N, 2]
    loss = F.binary_cross_entropy_with_logits(valid, label[:, None].expand_as(valid).to(valid.dtype))
    if not math.isfinite(loss.detach()):
        _refuse(mask, logits=logits.detach().sum(-1))
    predicted = step_values(valid.detach())
    return loss, {"value_loss": float(loss.detach()), "value_mean": float(predicted.mean()),
                  "label_mean": float(label.mean())}


def trajectory_value_loss(*, logits: Tensor, outcomes: Tensor, mask: Tensor | None = None,
                          at: str = "initial") -> tuple[Tensor, dict[str, float]]:
    """Binary cross-entropy of V_traj to the outcome 1[success]. logits [B], outcomes [B] bool or {0, 1}.

    logits [B]: of the one observation of each trajectory that V_traj sees. logits [B, T+1]: of all observations,
    with the mask [B, T] of the steps (padded on the right); `at` takes one of them: "initial" is s_0, as in the
    authors' code, "terminal" what was seen after the last step. Only the one taken gets a gradient.
    Trajectories whose judge could not tell have no outcome: leave them out.
    """
    if at not in ("initial", "terminal"):
        raise ValueError(f"at must be 'initial' or 'terminal', got {at!r}")
    if mask is not None:
        if mask.dtype != torch.bool or logits.shape != (len(mask), mask.shape[-1] + 1):
            raise ValueError(f"expected logits [B, T+1] and mask [B, T] of torch.bool, got {tuple(logits.shape)} "
                             f"and {tuple(mask.shape)} of {mask.dtype}")
        steps = mask.sum(1, keepdim=True)
        logits = logits.gather(1, steps if at == "terminal" else torch.zeros_like(steps)).squeeze(1)
    if logits.ndim != 1 or logits.shape != outcomes.shape or not len(logits):
        raise ValueError(f"expected logits and outcomes [B], B >= 1, got {tuple(logits.shape)} "
                         f"and {tuple(outcomes.shape)}")
    label = outcomes.to(_accurate(logits).dtype)
    if not ((label == 0) | (label == 1)).all():
        raise ValueError(f"outcomes must be 0 or 1, got {outcomes.tolist()}: leave unjudged trajectories out")
    loss = F.binary_cross_entropy_with_logits(_accurate(logits), label)
    if not math.isfinite(loss.detach()):
        raise ValueError(f"logits {tuple(logits.shape)} are not finite: {logits.tolist()}")
    return loss, {"trajectory_value_loss": float(loss.detach())}


@torch.no_grad()
def trajectory_priorities(*, td_error: Tensor, rho: Tensor, entropy: Tensor, mask: Tensor, w_td: float = 50.0,
                          w_rho: float = 1.0, w_entropy: float = 0.01, rho_clip: float = math.inf) -> Tensor:
    """DPER: w_td mean|delta_t| + w_rho mean rho_t + w_entropy mean H_t over a trajectory's steps; [B, T] -> [B].

    `td_error`: delta_t, a step's whole correction. The weights are the authors' code's. `rho_clip` bounds rho in the
    mean (the paper: no bound), lest one stale step own the buffer. The power alpha is the replay's business.
    """
    _check(mask, td_error=td_error, rho=rho, entropy=entropy, rho_clip=rho_clip)
    td_error, rho, entropy = _accurate(td_error), _accurate(rho), _accurate(entropy)
    score = (w_td * td_error.abs() + w_rho * rho.clamp(max=rho_clip) + w_entropy * entropy).masked_fill(~mask, 0.0)
    if not math.isfinite(score.sum()):
        _refuse(mask, td_error=td_error, rho=rho, entropy=entropy)
    return score.sum(1) / mask.sum(1).clamp(min=1)
