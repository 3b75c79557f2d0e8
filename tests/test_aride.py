"""aride.py against published vectors, a slow double loop from the formula, identities; the file alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from alone import run_alone

import aride
from baselines import authors_rewards


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


def actor(**changes):
    """(loss, metrics, gradient to logprob) of the actor loss; on-policy, unit advantage unless changed."""
    logprob = changes.pop("logprob", t([[-1.0, -2.0]])).clone().requires_grad_()
    arguments = dict(behavior_logprob=logprob.detach().clone(), advantage=torch.ones_like(logprob).detach(),
                     entropy=torch.zeros_like(logprob).detach(), invalid=never(logprob), mask=always(logprob),
                     entropy_coef=0.0, invalid_coef=0.0) | changes
    loss, metrics = aride.actor_loss(logprob=logprob, **arguments)
    loss.backward()
    return float(loss.detach()), metrics, logprob.grad


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
    shaped = authors_rewards(rewards=rewards, mask=always(rewards), gamma=0.5, step_cost=0.05)
    close(shaped, t([[0.2, 0.45, 1.95]]))


def test_lambda_0_is_the_one_step_target():
    arguments = batch() | {"lam": 0.0}
    want = arguments["rewards"] + 0.9 * arguments["next_values"] * ~arguments["terminated"]
    close(aride.retrace(**arguments), want * arguments["mask"])


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
@pytest.mark.parametrize("seed", range(4))
def test_float32_is_within_2e6_of_float64_over_random_lengths_flags_and_ratios(kind, seed):
    for T in (1, 10, 20, 60):
        arguments = batch(B=64, T=T, seed=seed, dtype=torch.float64) | {"lam": 1.0, "gamma": 0.99}
        arguments["rewards"] = arguments["rewards"].clamp(-1, 1) * (torch.rand(64, T) < 0.1)
        arguments["log_rho"] = arguments["log_rho"] * 30  # far beyond both clamps
        f = getattr(aride, kind)
        assert (f(**cast(arguments, torch.float32)) - f(**arguments)).abs().max() < 2e-6


THEN = """
import doctest
done = doctest.testmod(sys.modules["aride"])
assert done.attempted >= 4 and not done.failed
assert not {"numpy", "transformers"} & set(sys.modules) - {"torch"}
"""


def test_copied_alone_the_readmes_lines_run_with_torch_only(tmp_path):
    from test_readme import BLOCKS

    lines, = (block for block in BLOCKS if "from aride import" in block)
    done = run_alone([Path(aride.__file__)], ["torch"], lines, THEN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor([[0.8100, 0.9000, 1.0000]])")
