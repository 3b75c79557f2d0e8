"""aride.py against published vectors, a slow double loop from the formula, identities and gradients."""

import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import aride


def t(x, dtype=torch.float32):
    return torch.tensor(x, dtype=dtype)


def close(a, b, atol=2e-6):
    assert torch.allclose(a, b, atol=atol, rtol=1e-6), (a, b)


def never(x):
    return torch.zeros(x.shape, dtype=torch.bool)


def always(x):
    return ~never(x)


def batch(B=5, T=9, seed=0, lengths=None, dtype=torch.float32):
    """Random padded trajectories; half of them terminated at their last step, the others truncated."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, T + 1, (B,), generator=g) if lengths is None else torch.tensor(lengths)
    mask = torch.arange(T) < lengths[:, None]
    last = torch.arange(T) == lengths[:, None] - 1
    values = torch.rand(B, T + 1, generator=g, dtype=dtype)
    terminated = last & (torch.arange(B) % 2 == 0)[:, None]
    return dict(rewards=torch.randn(B, T, generator=g, dtype=dtype), values=values[:, :-1],
                next_values=values[:, 1:], log_rho=torch.randn(B, T, generator=g, dtype=dtype),
                terminated=terminated, mask=mask, gamma=0.9, lam=0.8)


def cast(arguments, dtype):
    return {k: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for k, x in arguments.items()}


def slow(kind, *, rewards, values, next_values, log_rho, terminated, mask, gamma, lam):
    """V_ret by the double sum of the formula, in float64, one trajectory at a time."""
    r, v, nv, lr = (x.double().numpy() for x in (rewards, values, next_values, log_rho))
    out = np.zeros_like(r)
    for b in range(len(r)):
        length = int(mask[b].sum())
        rho = np.minimum(1, np.exp(lr[b]))
        td = r[b] + gamma * np.where(terminated[b], 0, nv[b]) - v[b]
        for s in range(length):
            out[b, s] = v[b, s]
            for k in range(s, length):
                if kind == "retrace":
                    out[b, s] += gamma ** (k - s) * np.prod(lam * rho[s + 1 : k + 1]) * td[k]
                else:
                    out[b, s] += gamma ** (k - s) * np.prod(lam * rho[s:k]) * rho[k] * td[k]
    return torch.from_numpy(out)


# ---- published vectors

RLAX_R = t([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]])
RLAX_DISCOUNT = t([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]])


def test_rlax_retrace_over_q():
    actions = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
    q = t([[[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1], [-1.2, 0.0]],
           [[2.1, 3.1], [9.5, 0.1], [-2.1, -1.1], [0.1, 7.4]]])
    target_q = t([[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2], [-2.25, -6.0]],
                  [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2], [1.5, 1.0]]])
    pi = t([[[0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]],
            [[0.1, 0.9], [1.0, 0.0], [0.3, 0.7], [0.7, 0.3]]])
    mu = t([[0.5, 0.1, 0.9, 0.3], [0.4, 0.6, 1.0, 0.9]])

    def taken(x):
        return x.gather(-1, actions[..., None]).squeeze(-1)

    rewards, flags = RLAX_R[:, :-1], RLAX_R[:, :-1]
    targets = aride.retrace(
        rewards=rewards, values=taken(target_q)[:, :-1], next_values=(pi * target_q).sum(-1)[:, 1:],
        log_rho=(taken(pi) / mu).log()[:, :-1], terminated=never(flags), mask=always(flags),
        gamma=RLAX_DISCOUNT[:, :-1], lam=0.9)
    close(targets, t([[-1.3, -1.6904875, 0.06875], [3.8889437, 3.1355350, -2.1795]]))
    close(targets - taken(q)[:, :-1], t([[-2.4, -2.7904875, -3.03125], [0.7889437, -6.3644650, -0.0795]]))


def test_rlax_vtrace():
    values = t([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]])
    log_rho = t([[-0.7441220, 3.1051347, -3.2503459, 1.1695984],
                 [4.5605825, -0.1268046, -11.3795849, 0.6463404]])
    targets = aride.vtrace(
        rewards=RLAX_R, values=values, next_values=torch.cat([values[:, 1:], t([[8.4], [-1.2]])], 1),
        log_rho=log_rho, terminated=never(values), mask=always(values), gamma=RLAX_DISCOUNT, lam=1.0)
    want = t([[-1.6155143, -3.4973226, 1.8670533, 50.316], [1.4662437, 3.6116405, -8.33692e-5, -13.54]])
    close(targets - values, want, atol=4e-6)


def test_rlax_lambda_returns():
    rewards = t([[1.0, 0, -1, 0, 1], [0.5, 0.8, -0.7, 0, 2.1]])
    discount = t([[0.5, 0.9, 1, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]])
    next_values = t([[3.0, 1, 5, -5, 3], [-1.7, 1.2, 2.3, 2.2, 2.7]])
    values = torch.cat([t([[7.0], [7.0]]), next_values[:, :-1]], 1)
    arguments = dict(rewards=rewards, values=values, next_values=next_values, log_rho=torch.zeros(2, 5),
                     terminated=never(values), mask=always(values), gamma=discount, lam=0.75)
    want = t([[1.6460547, 0.7228125, 0.7375, 0.65, 3.4], [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99]])
    close(aride.retrace(**arguments), want)


def test_c1_retrace_is_not_vtrace():
    arguments = dict(rewards=t([[0.0, 1]]), values=t([[0.1, 0.2]]), next_values=t([[0.2, 0.0]]),
                     log_rho=t([[0.5, 0.5]]).log(), terminated=torch.tensor([[False, True]]),
                     mask=torch.ones(1, 2, dtype=torch.bool), gamma=0.9, lam=1.0)
    close(aride.retrace(**arguments), t([[0.54, 1.00]]))
    close(aride.vtrace(**arguments), t([[0.32, 0.60]]))
    arguments.update(gamma=t([[0.9, 0.0]]), terminated=never(arguments["mask"]))  # as a discount of 0
    close(aride.retrace(**arguments), t([[0.54, 1.00]]))


# ---- the slow formula, identities, what must not leak

@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
@pytest.mark.parametrize("T", [1, 2, 9, 128])
def test_equals_the_slow_double_loop(kind, T):
    arguments = batch(B=6, T=T, seed=T)
    close(getattr(aride, kind)(**arguments).double(), slow(kind, **arguments))


@pytest.mark.parametrize("T", [10, 20, 128])
def test_float32_is_within_2e6_of_float64(T):
    arguments = batch(B=64, T=T, seed=3, dtype=torch.float64, lengths=[T] * 64)
    arguments["rewards"] = arguments["rewards"].clamp(0, 1) * (torch.rand(64, T) < 0.1)
    single = cast(arguments, torch.float32)
    for f in (aride.retrace, aride.vtrace):
        assert (f(**single) - f(**arguments)).abs().max() < 2e-6


def test_on_policy_with_lambda_1_is_the_n_step_return_and_c18_counts_the_reward_once():
    rewards, zeros = t([[0.0, 0, 1]]), torch.zeros(1, 3)
    ends = torch.tensor([[False, False, True]])
    arguments = dict(rewards=rewards, values=zeros, next_values=zeros, log_rho=zeros, terminated=ends,
                     mask=always(rewards), gamma=0.5, lam=1.0)
    for f in (aride.retrace, aride.vtrace):
        close(f(**arguments), t([[0.25, 0.5, 1.0]]))
    close(aride.discounted_returns(rewards=rewards, mask=always(rewards), gamma=0.5), t([[0.25, 0.5, 1.0]]))
    shaped = aride.authors_rewards(rewards=rewards, mask=always(rewards), gamma=0.5, step_cost=0.05)
    close(shaped, t([[0.2, 0.45, 1.95]]))


def test_lambda_0_is_the_one_step_target():
    arguments = batch() | {"lam": 0.0}
    want = arguments["rewards"] + 0.9 * arguments["next_values"] * ~arguments["terminated"]
    close(aride.retrace(**arguments), want * arguments["mask"])


def test_c2_terminated_and_truncated():
    base = dict(rewards=t([[0.0, 0, 1]]), values=t([[0.1, 0.2, 0.3]]), log_rho=torch.zeros(1, 3), gamma=0.5,
                lam=1.0, mask=torch.ones(1, 3, dtype=torch.bool))
    end = torch.tensor([[False, False, True]])
    for f in (aride.retrace, aride.vtrace):
        close(f(**base, next_values=t([[0.2, 0.3, 9]]), terminated=end), t([[0.25, 0.5, 1.0]]))
        close(f(**base, next_values=t([[0.2, 0.3, 0.4]]), terminated=never(end)), t([[0.30, 0.60, 1.20]]))


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_trajectories_that_share_a_row_do_not_leak(kind):
    f = getattr(aride, kind)
    arguments = batch(B=2, T=4, lengths=[4, 4])  # row 0 terminated, row 1 truncated
    apart = f(**arguments)
    row = {k: x.reshape(1, 8) if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    for order in (slice(None), slice(None, None, -1)):
        packed = {k: x.reshape(2, 4)[[0, 1][order]].reshape(1, 8) if isinstance(x, torch.Tensor) else x
                  for k, x in row.items()}
        truncated = torch.zeros(2, 4, dtype=torch.bool)
        truncated[1, 3] = True
        truncated = truncated[[0, 1][order]].reshape(1, 8)
        close(f(**packed, truncated=truncated).reshape(2, 4)[[0, 1][order]], apart)
        ours = {k: packed[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
        got = aride.advantages(**ours, targets=f(**packed, truncated=truncated), truncated=truncated)
        theirs = {k: arguments[k] for k in ours}
        close(got.reshape(2, 4)[[0, 1][order]], aride.advantages(**theirs, targets=apart))


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_padding_on_either_side_changes_nothing_whatever_it_holds(kind):
    f = getattr(aride, kind)
    arguments = batch(B=3, T=4, lengths=[4, 4, 4])
    for bad in (0.0, math.inf, -math.inf, math.nan):
        padded = {}
        for name, x in arguments.items():
            if isinstance(x, torch.Tensor):
                fill = bad if x.is_floating_point() else False
                edge = torch.full((3, 3), fill, dtype=x.dtype)
                x = torch.cat([edge, x, edge], 1)
            padded[name] = x
        got = f(**padded)
        close(got[:, 3:-3], f(**arguments))
        assert (got[:, :3] == 0).all() and (got[:, -3:] == 0).all()


def test_a_hole_in_the_mask_separates():
    arguments = batch(B=1, T=5, lengths=[5])
    arguments["mask"][0, 2] = False
    left = {k: x[:, :2] if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    for f in (aride.retrace, aride.vtrace):
        close(f(**arguments)[:, :2], f(**left))
    got = aride.discounted_returns(rewards=t([[1.0, 1, 8, 1, 1]]), mask=arguments["mask"], gamma=0.5)
    close(got, t([[1.5, 1, 0, 1.5, 1]]))


def test_c19_monte_carlo_return():
    rewards = t([[0.0, 0, 0, 0, 1]])
    got = aride.discounted_returns(rewards=rewards, mask=always(rewards), gamma=0.95)
    close(got[0, [0, 4]], t([0.81450625, 1.0]))
    ends = torch.tensor([[False, True, False, False, True]])
    got = aride.discounted_returns(rewards=t([[0.0, 2, 0, 0, 1]]), mask=always(rewards), gamma=0.5, ends=ends)
    close(got, t([[1, 2, 0.25, 0.5, 1]]))


def test_c4_a_single_terminal_step():
    one = t([[1.0]])
    step = dict(rewards=one, values=t([[0.3]]), next_values=t([[9.0]]), terminated=one.bool(),
                mask=one.bool(), gamma=0.5)
    targets = aride.retrace(**step, log_rho=torch.zeros(1, 1), lam=1.0)
    advantage = aride.advantages(**step, targets=targets)
    close(targets, t([[1.0]]))
    close(advantage, t([[0.7]]))
    assert actor(logprob=t([[-1.0]]), advantage=advantage)[2].abs().item() == pytest.approx(0.7)


def test_advantage_uses_the_corrected_value_of_the_next_state():
    arguments = batch(B=4, T=6)
    targets = aride.retrace(**arguments)
    step = {k: arguments[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
    got = aride.advantages(**step, targets=targets)
    for b, i in arguments["mask"].nonzero().tolist():
        last = i == int(arguments["mask"][b].sum()) - 1
        after = arguments["next_values"][b, i] if last else targets[b, i + 1]
        after = 0.0 if arguments["terminated"][b, i] else after
        want = arguments["rewards"][b, i] + 0.9 * after - arguments["values"][b, i]
        assert float(got[b, i]) == pytest.approx(float(want), abs=2e-6)
    one_step = aride.advantages(**step, targets=arguments["values"])
    close(one_step, aride.td_errors(**step))
    # On-policy with lambda 1 both corrections agree: A_t = V_ret(s_t) - V(s_t).
    arguments.update(lam=1.0, log_rho=torch.zeros(4, 6))
    targets = aride.retrace(**arguments)
    close(aride.advantages(**step, targets=targets), (targets - arguments["values"]) * arguments["mask"])


def test_targets_and_advantages_carry_no_gradient_yet_can_be_used_in_a_loss():
    arguments = batch()
    for name in ("values", "next_values", "log_rho", "rewards"):
        arguments[name] = arguments[name].clone().requires_grad_()
    weight = torch.ones(5, 9, requires_grad=True)
    for f in (aride.retrace, aride.vtrace):
        targets = f(**arguments)
        assert not targets.requires_grad and not targets.is_inference()
        (weight * targets).sum().backward()
    assert arguments["values"].grad is None and weight.grad.isfinite().all()


def test_half_precision_inputs_are_widened():
    arguments = batch()
    half = cast(arguments, torch.bfloat16)
    got = aride.retrace(**half)
    assert got.dtype == torch.float32
    close(got, aride.retrace(**cast(half, torch.float32)))


# ---- bad input

def test_c20_keyword_only_boolean_masks_and_shapes_in_the_error():
    arguments = batch()
    with pytest.raises(TypeError):
        aride.retrace(arguments["rewards"])
    with pytest.raises(ValueError, match="mask must be torch.bool, got torch.float32: pass mask.bool"):
        aride.retrace(**arguments | {"mask": arguments["mask"].float()})
    with pytest.raises(ValueError, match="terminated must be torch.bool"):
        aride.vtrace(**arguments | {"terminated": arguments["terminated"].int()})
    with pytest.raises(ValueError, match=r"rewards \(5, 8\)"):
        aride.retrace(**arguments | {"rewards": arguments["rewards"][:, :-1]})
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        aride.retrace(**{k: x[0] if isinstance(x, torch.Tensor) else x for k, x in arguments.items()})


@pytest.mark.parametrize("name", ["rewards", "values", "next_values", "log_rho"])
def test_a_true_nan_is_refused_with_its_place(name):
    for place in ((1, 0), (1, 3)):
        arguments = batch(lengths=[9] * 5)
        x = arguments[name] = arguments[name].clone()
        x[place] = math.nan
        for f in (aride.retrace, aride.vtrace):
            with pytest.raises(ValueError, match=rf"{name} \(5, 9\) has 1 NaN .* \[1, {place[1]}\]: nan"):
                f(**arguments)


def test_a_nan_value_of_a_terminal_next_state_is_ignored():
    arguments = batch(lengths=[9] * 5)
    arguments["next_values"] = arguments["next_values"].masked_fill(arguments["terminated"], math.nan)
    assert aride.retrace(**arguments).isfinite().all()


@pytest.mark.parametrize("log_rho", [-math.inf, -90.0, 90.0, math.inf])
def test_extreme_ratios_stay_finite(log_rho):
    arguments = batch() | {"log_rho": torch.full((5, 9), log_rho)}
    for f in (aride.retrace, aride.vtrace):
        assert f(**arguments).isfinite().all()


# ---- the actor's loss

def actor(**changes):
    """(loss, metrics, gradient to logprob) of the actor loss; on-policy, unit advantage unless changed."""
    logprob = changes.pop("logprob", t([[-1.0, -2.0]])).clone().requires_grad_()
    arguments = dict(behavior_logprob=logprob.detach().clone(), advantage=torch.ones_like(logprob).detach(),
                     entropy=torch.zeros_like(logprob).detach(), invalid=never(logprob), mask=always(logprob),
                     entropy_coef=0.0, invalid_coef=0.0) | changes
    loss, metrics = aride.actor_loss(logprob=logprob, **arguments)
    loss.backward()
    return float(loss.detach()), metrics, logprob.grad


def test_actor_loss_by_hand():
    # rho = (e, 1/e), clipped (1, 1/e); A = (2, -3); log pi = (-1, -2)
    loss, metrics, grad = actor(behavior_logprob=t([[-2.0, -1.0]]), advantage=t([[2.0, -3.0]]))
    assert loss == pytest.approx(-(1 * 2 * -1 + math.exp(-1) * -3 * -2) / 2)
    close(grad, t([[-1.0, 1.5 * math.exp(-1)]]))  # up where A > 0, down where A < 0, rho a constant
    assert metrics["rho_mean"] == pytest.approx((math.e + 1 / math.e) / 2)
    assert metrics["rho_max"] == pytest.approx(math.e) and metrics["rho_clipfrac"] == 0.5
    assert metrics["ess"] == pytest.approx((math.e + 1 / math.e) ** 2 / (math.e**2 + math.e**-2) / 2)
    _, _, grad = actor(behavior_logprob=t([[-2.0, -1.0]]), advantage=t([[2.0, -3.0]]), rho_clip=math.inf)
    close(grad, t([[-math.e, 1.5 * math.exp(-1)]]))


def test_c8_on_policy_ratio_is_one_and_the_whole_batch_counts():
    logprob = t([[-40.0, -0.3], [-7.0, -11.0]])
    _, metrics, _ = actor(logprob=logprob)
    assert (metrics["rho_mean"], metrics["rho_max"], metrics["rho_clipfrac"]) == (1, 1, 0)
    assert metrics["ess"] == pytest.approx(1)
    rho = aride.importance_ratio(logprob=logprob, behavior_logprob=logprob, mask=always(logprob))
    assert (rho == 1).all()


@pytest.mark.parametrize("gap", [-90.0, 90.0, -math.inf, math.inf])
def test_c5_log_ratio_is_clamped_before_exp(gap):
    logprob = t([[-2.0]])
    loss, metrics, grad = actor(logprob=logprob, behavior_logprob=logprob - gap, rho_clip=math.inf)
    assert math.isfinite(loss) and grad.isfinite().all() and all(map(math.isfinite, metrics.values()))
    assert metrics["rho_max"] == pytest.approx(math.exp(math.copysign(20, gap)), rel=1e-5)


def test_c14_padding_changes_neither_loss_nor_gradient_whatever_it_holds():
    loss, metrics, grad = actor(entropy=t([[0.5, 0.7]]), entropy_coef=0.1, invalid_coef=0.3,
                                invalid=torch.tensor([[True, False]]))
    for bad in (0.0, -math.inf, math.nan):
        padded, padded_metrics, padded_grad = actor(
            logprob=t([[-1.0, -2.0, bad]]), behavior_logprob=t([[-1.0, -2.0, bad]]),
            advantage=t([[1.0, 1.0, bad]]), entropy=t([[0.5, 0.7, bad]]),
            invalid=torch.tensor([[True, False, True]]), mask=torch.tensor([[True, True, False]]),
            entropy_coef=0.1, invalid_coef=0.3)
        assert padded == loss and padded_metrics == metrics
        assert torch.equal(padded_grad, torch.cat([grad, t([[0.0]])], 1))


def test_c13_entropy_goes_up():
    logits = t([1.0, 0.0, -1.0, 0.5]).requires_grad_()

    def entropy():
        logp = logits.log_softmax(-1)
        return -(logp.exp() * logp).sum()

    before = entropy()
    one = torch.ones(1, 1)
    loss, metrics = aride.actor_loss(
        logprob=logits.log_softmax(-1)[0].reshape(1, 1), behavior_logprob=-one, advantage=0 * one,
        entropy=before.reshape(1, 1), invalid=never(one), mask=always(one), entropy_coef=0.1,
        invalid_coef=0.0)
    loss.backward()
    with torch.no_grad():
        logits -= 1.0 * logits.grad
    assert entropy() > before and metrics["entropy"] == pytest.approx(before.item())


def test_the_invalid_term_is_the_gradient_of_the_probability_of_an_invalid_action():
    """Three actions, the third invalid. The expectation of the term over mu is d P_invalid / d logits."""
    logits = t([0.3, -0.2, 0.6], torch.float64).requires_grad_()
    p = logits.softmax(-1)
    want, = torch.autograd.grad(p[2], logits)
    mu = t([0.5, 0.3, 0.2], torch.float64)
    got = torch.zeros(3, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    for action in range(3):
        loss, metrics = aride.actor_loss(
            logprob=logits.log_softmax(-1)[action].reshape(1, 1), behavior_logprob=mu[action].log() * one,
            advantage=0 * one, entropy=0 * one, invalid=(action == 2) & always(one), mask=always(one),
            entropy_coef=0.0, invalid_coef=1.0, rho_clip=math.inf)
        got += mu[action] * torch.autograd.grad(loss, logits)[0]
        assert metrics["invalid_penalty"] == pytest.approx((action == 2) * float(p[2].detach() / mu[2]))
    close(got, want)
    _, _, grad = actor(advantage=t([[0.0, 0.0]]), invalid_coef=1.0, invalid=torch.tensor([[True, False]]))
    close(grad, t([[0.5, 0.0]]))


def test_ratio_trust_drops_steps_that_left_on_the_side_they_push_to():
    rho = t([[3.0, 3.0, 0.2, 0.2, 1.2]])
    gain = t([[1.0, -1.0, 1.0, -1.0, 1.0]])
    logprob = torch.full((1, 5), -2.0)
    _, metrics, grad = actor(logprob=logprob, behavior_logprob=logprob - rho.log(), advantage=gain,
                             ratio_trust=0.5)
    close(grad, t([[0.0, 1.0, -0.2, 0.0, -1.0]]) / 5)
    assert metrics["trust_dropped"] == pytest.approx(0.4)


def test_binarised_advantages_never_push_down():
    _, _, grad = actor(advantage=t([[0.2, -5.0]]), binarise=True)
    close(grad, t([[-0.5, 0.0]]))
    loss, _, _ = actor(advantage=t([[7.0, -5.0]]), binarise=True)
    assert loss == actor(advantage=t([[0.1, 0.0]]), binarise=True)[0]


def test_actor_refuses_nan_bool_errors_and_empty_masks():
    for name in ("logprob", "behavior_logprob", "advantage", "entropy"):
        for binarise in (False, True):
            with pytest.raises(ValueError, match=rf"{name} \(1, 2\) has 1 NaN .*\[0, 1\]"):
                actor(**{name: t([[-1.0, math.nan]])} | ({"behavior_logprob": t([[-1.0, -1.0]])}
                      if name == "logprob" else {}), binarise=binarise)
    with pytest.raises(ValueError, match="invalid must be torch.bool"):
        actor(invalid=t([[0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"mask \(1, 2\) selects no step"):
        actor(mask=torch.zeros(1, 2, dtype=torch.bool))


def test_normalise_advantages():
    advantage = t([[3.0, -4.0, 99.0]])
    mask = torch.tensor([[True, True, False]])
    rms = math.sqrt(12.5)
    close(aride.normalise_advantages(advantage=advantage, mask=mask, eps=0), t([[3 / rms, -4 / rms, 0]]))
    got = aride.normalise_advantages(advantage=advantage, mask=mask, clip=1.0, negative_scale=0.3, eps=0)
    close(got, t([[3 / rms, -0.3, 0]]))
    shifted = aride.normalise_advantages(advantage=t([[1.0, 1.1]]), mask=torch.ones(1, 2, dtype=torch.bool))
    assert (shifted > 0).all()  # not centred: what was good stays good
    assert (aride.normalise_advantages(advantage=0 * advantage, mask=mask) == 0).all()
    with pytest.raises(ValueError, match="advantage"):
        aride.normalise_advantages(advantage=t([[math.nan]]), mask=torch.ones(1, 1, dtype=torch.bool))


# ---- the critics' losses and DPER

def test_c17_cross_entropy_by_hand():
    one = torch.ones(1, 1)
    loss, _ = aride.value_loss(logits=t([[[2.0, 2.0]]]), targets=one, mask=always(one))
    assert float(loss) == pytest.approx(0.126928, abs=1e-6)


def test_value_loss_hard_and_soft_labels_two_heads_and_mask():
    logits = t([[[0.0, 1.0], [5.0, -5.0]]]).requires_grad_()
    targets, mask = t([[0.3, math.nan]]), torch.tensor([[True, False]])
    hard, metrics = aride.value_loss(logits=logits, targets=targets, mask=mask)
    assert float(hard.detach()) == pytest.approx((math.log(2) + math.log1p(math.exp(-1))) / 2)
    assert metrics["label_mean"] == 1 and metrics["value_mean"] == pytest.approx(0.5)
    hard.backward()
    assert (logits.grad[0, 0] < 0).all() and (logits.grad[0, 1] == 0).all()
    logits.grad = None
    soft, metrics = aride.value_loss(logits=logits, targets=targets, mask=mask, soft=True)
    soft.backward()
    close(logits.grad[0, 0], (torch.sigmoid(t([0.0, 1.0])) - 0.3) / 2)
    assert metrics["label_mean"] == pytest.approx(0.3)
    one = torch.ones(1, 1)
    for target, label in ((1.7, 1.0), (-0.4, 0.0)):
        got = aride.value_loss(logits=t([[[0.0, 0.0]]]), targets=target * one, mask=always(one), soft=True)[1]
        assert got["label_mean"] == label
    with pytest.raises(ValueError, match=r"targets \(1, 1\) has 1 NaN"):
        aride.value_loss(logits=t([[[0.0, 0.0]]]), targets=math.nan * one, mask=always(one))
    with pytest.raises(ValueError, match=r"logits \[B, T, 2\]"):
        aride.value_loss(logits=one, targets=one, mask=always(one))


def test_step_values_is_the_lower_head():
    close(aride.step_values(t([[[0.0, 1.0], [3.0, -2.0]]])), torch.sigmoid(t([[0.0, -2.0]])))


def test_trajectory_value_loss():
    logits = t([0.0, 2.0]).requires_grad_()
    loss, metrics = aride.trajectory_value_loss(logits=logits, outcomes=torch.tensor([False, True]))
    assert metrics["trajectory_value_loss"] == pytest.approx((math.log(2) + 0.126928) / 2, abs=1e-6)
    loss.backward()
    assert logits.grad[0] > 0 > logits.grad[1]
    with pytest.raises(ValueError, match="unjudged"):
        aride.trajectory_value_loss(logits=logits, outcomes=t([0.5, 1.0]))
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        aride.trajectory_value_loss(logits=logits, outcomes=torch.ones(3))


def test_dper_priorities():
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    bad = t([[0.0, 0.0], [0.0, math.nan], [math.inf, math.nan]])
    got = aride.trajectory_priorities(td_error=t([[-0.2, 0.4], [0.1, 0], [0, 0]]) + bad,
                                      rho=t([[1.0, 3.0], [0.5, 9], [9, 9]]), mask=mask,
                                      entropy=t([[2.0, 0.0], [1.0, 9], [9, 9]]))
    close(got, t([50 * 0.3 + 2 + 0.01, 5 + 0.5 + 0.01, 0]))
    got = aride.trajectory_priorities(td_error=torch.ones(1, 1), rho=torch.full((1, 1), 1e5),
                                      entropy=torch.ones(1, 1), mask=mask[:1, :1], w_td=1, w_rho=2,
                                      w_entropy=3, rho_clip=10.0)
    close(got, t([1.0 + 20 + 3]))
    with pytest.raises(ValueError, match="td_error"):
        aride.trajectory_priorities(td_error=t([[math.nan]]), rho=torch.ones(1, 1), entropy=torch.ones(1, 1),
                                    mask=mask[:1, :1])


# ---- each demand that had no test of its own

@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
@pytest.mark.parametrize("seed", range(4))
def test_float32_is_within_2e6_of_float64_over_random_lengths_flags_and_ratios(kind, seed):
    for T in (1, 10, 20, 60):
        arguments = batch(B=64, T=T, seed=seed, dtype=torch.float64) | {"lam": 1.0, "gamma": 0.99}
        arguments["rewards"] = arguments["rewards"].clamp(-1, 1) * (torch.rand(64, T) < 0.1)
        arguments["log_rho"] = arguments["log_rho"] * 30  # far beyond both clamps
        f = getattr(aride, kind)
        assert (f(**cast(arguments, torch.float32)) - f(**arguments)).abs().max() < 2e-6


@pytest.mark.parametrize("at", ["rewards", "values", "next_values", "log_rho", "gamma"])
def test_masked_infinities_are_harmless_wherever_they_stand(at):
    arguments = batch(B=2, T=6, lengths=[6, 6])
    arguments["gamma"] = torch.full((2, 6), 0.9)
    arguments["mask"][:, [0, 3]] = False
    for f in (aride.retrace, aride.vtrace):
        want = f(**arguments)
        for bad in (math.inf, -math.inf, math.nan):
            assert torch.equal(f(**arguments | {at: arguments[at].masked_fill(~arguments["mask"], bad)}), want)


def test_gamma_and_lam_are_checked_and_named():
    arguments = batch(B=2, T=3, lengths=[3, 3])
    for changes in ({"gamma": 1.1}, {"gamma": math.nan}, {"lam": -0.1}, {"lam": 2.0}):
        with pytest.raises(ValueError, match=r"gamma and lam must be in \[0, 1\]"):
            aride.retrace(**arguments | changes)
    with pytest.raises(ValueError, match=r"gamma \(3,\)"):
        aride.vtrace(**arguments | {"gamma": torch.full((3,), 0.9)})
    with pytest.raises(ValueError, match=r"gamma \(2, 3\) has 6 NaN"):
        aride.vtrace(**arguments | {"gamma": torch.full((2, 3), math.nan)})
    step = {k: arguments[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
    with pytest.raises(ValueError, match=r"targets \(2, 3\) has 1 NaN .*\[0, 1\]"):
        aride.advantages(**step, targets=t([[0.0, math.nan, 0], [0, 0, 0]]))


def test_c1_the_loss_sees_gradients_through_two_arguments_only():
    names = ("logprob", "behavior_logprob", "advantage", "entropy")
    x = {name: t([[-1.0, -2.0, -0.5]]).requires_grad_() for name in names}
    loss, _ = aride.actor_loss(**x, invalid=torch.tensor([[True, False, False]]), mask=always(x["logprob"]),
                               entropy_coef=0.3, invalid_coef=0.2, rho_clip=math.inf)
    loss.backward()
    assert x["behavior_logprob"].grad is None and x["advantage"].grad is None
    close(x["entropy"].grad, torch.full((1, 3), -0.1))  # more entropy, less loss


ACTOR_SIGNS = {  # one change against: advantage 1, on-policy, log pi -1 and -2 -> the gradient to logprob, twice
    "advantage up: probability up": (dict(advantage=t([[2.0, 0.0]])), [-2.0, 0.0]),
    "advantage down: probability down": (dict(advantage=t([[-2.0, 0.0]])), [2.0, 0.0]),
    "mu smaller, rho above the clip": (dict(behavior_logprob=t([[-3.0, -2.0]])), [-1.0, -1.0]),
    "mu larger, rho below 1": (dict(behavior_logprob=t([[0.0, -2.0]])), [-math.exp(-1), -1.0]),
    "rho_clip": (dict(behavior_logprob=t([[-3.0, -2.0]]), rho_clip=2.0), [-2.0, -1.0]),
    "rho_clip below 1": (dict(rho_clip=0.5), [-0.5, -0.5]),
    "mask": (dict(mask=torch.tensor([[True, False]])), [-2.0, 0.0]),
    "invalid_coef: an invalid action down": (
        dict(invalid=torch.tensor([[True, False]]), invalid_coef=3.0, advantage=t([[0.0, 0.0]])), [3.0, 0.0]),
    "invalid without its coefficient": (dict(invalid=torch.tensor([[True, True]])), [-1.0, -1.0]),
    "entropy is not a gradient to logprob": (dict(entropy=t([[9.0, 9.0]]), entropy_coef=5.0), [-1.0, -1.0]),
    "ratio_trust keeps what is inside": (dict(ratio_trust=0.2), [-1.0, -1.0]),
    "ratio_trust drops": (dict(behavior_logprob=t([[-3.0, -2.0]]), ratio_trust=0.2), [0.0, -1.0]),
    "binarise": (dict(advantage=t([[0.01, -7.0]]), binarise=True), [-1.0, 0.0]),
}


@pytest.mark.parametrize("name", ACTOR_SIGNS)
def test_sign_and_gradient_of_each_argument_of_the_actor_loss(name):
    changes, want = ACTOR_SIGNS[name]
    close(actor(**changes)[2], t([want]) / 2)


def test_entropy_coef_moves_the_loss_down_and_invalid_coef_up_with_the_ratio():
    base = actor()[0]
    assert actor(entropy=t([[2.0, 4.0]]), entropy_coef=0.1)[0] == pytest.approx(base - 0.3)
    _, metrics, _ = actor(invalid=torch.tensor([[True, False]]), invalid_coef=0.5)
    assert metrics["invalid_penalty"] == pytest.approx(0.25)


def test_c5_the_reported_gap_and_a_true_nan():
    loss, metrics, grad = actor(logprob=t([[-2.0, -1.0]]), behavior_logprob=t([[-91.0, -math.inf]]),
                                mask=torch.tensor([[True, False]]), rho_clip=math.inf)
    assert math.isfinite(loss) and grad.isfinite().all() and grad[0, 1] == 0
    assert metrics["rho_max"] == pytest.approx(math.exp(20), rel=1e-5)
    with pytest.raises(ValueError, match="logprob"):
        actor(logprob=t([[math.nan, -1.0]]), behavior_logprob=t([[-1.0, -1.0]]))


def test_c13_entropy_of_the_uniform_is_log_4():
    logp = torch.zeros(4).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum().reshape(1, 1)
    assert aride.actor_loss(logprob=logp[:1, None], behavior_logprob=logp[:1, None], advantage=0 * entropy,
                            entropy=entropy, invalid=never(entropy), mask=always(entropy), entropy_coef=1.0,
                            invalid_coef=0.0)[1]["entropy"] == pytest.approx(1.386294, abs=1e-6)


def test_c17_double_softmax_and_the_step_cost_is_an_argument():
    logits = torch.tensor([[0.0, 2.0]])
    got = aride.trajectory_value_loss(logits=logits[:, 1] - logits[:, 0], outcomes=torch.tensor([True]))[0]
    assert float(got) == pytest.approx(0.126928, abs=1e-6)
    for cost in (0.0, 0.05, 1.0):
        shaped = aride.authors_rewards(rewards=t([[0.0, 1.0]]), mask=always(t([[0.0, 1]])), gamma=0.5, step_cost=cost)
        close(shaped, t([[0.5 - cost, 2.0 - cost]]))


def test_trajectory_value_of_the_initial_or_the_terminal_observation():
    logits = t([[0.0, 1.0, 2.0, 99.0], [3.0, -1.0, math.nan, math.nan]]).requires_grad_()
    mask, outcomes = torch.tensor([[True, True, False], [True, False, False]]), torch.tensor([True, False])
    for at, picked in (("initial", [0, 0]), ("terminal", [2, 1])):
        logits.grad = None
        loss, _ = aride.trajectory_value_loss(logits=logits, outcomes=outcomes, mask=mask, at=at)
        rows = logits.detach()[[0, 1], picked]
        assert loss == aride.trajectory_value_loss(logits=rows, outcomes=outcomes)[0]
        loss.backward()
        assert logits.grad.nonzero().tolist() == [[0, picked[0]], [1, picked[1]]]
    with pytest.raises(ValueError, match="'initial' or 'terminal', got 'last'"):
        aride.trajectory_value_loss(logits=logits, outcomes=outcomes, mask=mask, at="last")
    with pytest.raises(ValueError, match=r"logits \[B, T\+1\]"):
        aride.trajectory_value_loss(logits=logits[:, 1:], outcomes=outcomes, mask=mask)
    with pytest.raises(ValueError, match="B >= 1"):
        aride.trajectory_value_loss(logits=torch.zeros(0), outcomes=torch.zeros(0))


def test_importance_ratio_is_exact_and_widens_before_it_subtracts():
    logprob, mu = t([[-1.0, -90.0, 0.0, math.nan]]), t([[-2.0, 0.0, -90.0, math.inf]])
    mask = torch.tensor([[True, True, True, False]])
    got = aride.importance_ratio(logprob=logprob.requires_grad_(), behavior_logprob=mu, mask=mask)
    assert not got.requires_grad
    assert got[0].tolist() == pytest.approx([math.e, math.exp(-20), math.exp(20), 0.0], rel=1e-6)
    half = dict(logprob=t([[-100.5]]).bfloat16(), behavior_logprob=t([[-0.0625]]).bfloat16(), mask=mask[:, :1])
    want = aride.importance_ratio(**cast(half, torch.float64))
    assert torch.equal(aride.importance_ratio(**half), want.float())
    with pytest.raises(ValueError, match=r"logprob \(1, 1\) has 1 NaN"):
        aride.importance_ratio(logprob=t([[math.nan]]), behavior_logprob=t([[0.0]]), mask=mask[:, :1])


ALONE = """
import importlib.metadata, re, sys
allowed = set(sys.stdlib_module_names) | {MODULE, "__main__", "torchgen", "functorch"}  # torch's own
waiting = [NEEDS]
while waiting:  # what is needed and what that itself requires; nothing else can be imported
    name = waiting.pop()
    if name not in allowed:
        allowed.add(name)
        found = importlib.metadata.requires(name) or []
        waiting += [re.split("[^A-Za-z0-9_.-]", r)[0].lower().replace("-", "_") for r in found if "extra" not in r]
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
exec(README)
import doctest
done = doctest.testmod(sys.modules[MODULE])
assert done.attempted >= 4 and not done.failed
assert not {"numpy", "transformers"} & set(sys.modules) - {NEEDS}
"""


def test_copied_alone_the_readmes_lines_run_with_torch_only(tmp_path):
    from test_readme import BLOCKS

    lines, = (block for block in BLOCKS if "from aride import" in block)
    shutil.copy(aride.__file__, tmp_path)
    code = f"MODULE, NEEDS, README = 'aride', 'torch', {lines!r}\n" + ALONE
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor([[0.8100, 0.9000, 1.0000]])")
