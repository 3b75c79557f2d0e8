"""What A-RIDE is compared with: DigiRL, filtered behaviour cloning, V-trace. Pure functions on [B, T]; torch, aride.py.

Each loss takes what `aride.actor_loss` takes and returns (loss, metrics) with the same names, so that a learner swaps
one for the other (`--algo`). Notation as in aride.py; R is a trajectory's outcome, G_t its discounted return.

    DigiRL (arXiv 2406.11896)   L = -mean 1[A > 0] log pi, on the trajectories with the highest R - V_traj
      --algo digirl, its code   A_t = r_t + G_t - 0.05 + V(s_{t+1}) - V(s_t)
      --algo digirl_paper       A_t = w R + (1 - w) (r_t + V(s_{t+1}) - V(s_t)) - 1/H,   w = gamma^(steps left after t)
    --algo filtered_bc          L = -mean 1[R > 0] log pi
    --algo vtrace (IMPALA, 1802.01561)   L = -mean min(rho, rho_clip) A log pi - beta mean H,
                                A_t = r_t + gamma v_{t+1} - V(s_t),   v from `aride.vtrace`

Example, a success of three steps whose second lost value; DigiRL clones the first and the last:

    >>> import torch; from baselines import digirl_advantages
    >>> ends, mask = torch.tensor([[False, False, True]]), torch.ones(1, 3, dtype=torch.bool)
    >>> values, after = torch.tensor([[.3, .9, .4]]), torch.tensor([[.9, .4, 9.]])
    >>> digirl_advantages(rewards=torch.tensor([[0., 0., 1.]]), values=values, next_values=after, terminated=ends,
    ...                   mask=mask, gamma=.5)
    tensor([[ 0.8000, -0.0500,  1.5500]])

Departs from DigiRL's code: V of a state after the end is 0 (there: what the critic says of it). V_traj labels the whole
replay anew before every draw (there: once an iteration). From its paper: H is `HORIZON` for every trajectory, and R is
the sum of the rewards. The learner gives invalid actions the advantage 0, as it does A-RIDE's: none is cloned or pushed
away. V-trace, which DistRL's paper lacks, is plain IMPALA: no trust region, no invalid-action term here, no DPER, no
scaled or damped advantages in the learner.
"""

import math

import torch
from torch import Tensor

import aride

# The share of the replay that they learn from: the authors' tenth, all ties with its last one included.
TOP_QUANTILE = {"digirl": 0.1, "digirl_paper": 0.1, "filtered_bc": 0.1}
# Flags of A-RIDE that change nothing for a baseline.
UNUSED = {"vtrace": "negative_scale ratio_trust priority_alpha priority_weights target retrace_lambda invalid_coef"}
UNUSED |= dict.fromkeys(TOP_QUANTILE, UNUSED["vtrace"] + " entropy_coef rho_clip")
UNUSED["filtered_bc"] += " gamma critic_warmup"  # no critic
HORIZON = 20  # H of the published filter, steps: the longest episode


@torch.no_grad()
def digirl_advantages(*, rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, mask: Tensor,
                      gamma: float, published: bool = False) -> Tensor:
    """DigiRL's step advantages, [B, T]; 0 outside the mask. What is above 0 is cloned.

    All [B, T]. V is undiscounted in both forms: gamma (DigiRL: 0.5) weighs the outcome alone. `published` takes the
    paper's doubly robust estimate, less the 1/H that a step must exceed there. A NaN at a valid step is a ValueError.
    """
    step = dict(values=values, next_values=next_values, terminated=terminated, mask=mask, gamma=1.0)
    if not published:
        return aride.td_errors(rewards=authors_rewards(rewards=rewards, mask=mask, gamma=gamma), **step)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    td = aride.td_errors(rewards=rewards, **step)
    outcome = outcome_advantages(rewards=rewards, mask=mask)
    left = mask.flip(1).cumsum(1).flip(1) - 1  # [B, T]: steps after this one
    weight = torch.full_like(td, gamma).pow(left)
    return (weight * outcome + (1 - weight) * td - 1 / HORIZON).masked_fill(~mask, 0.0)


@torch.no_grad()
def authors_rewards(*, rewards: Tensor, mask: Tensor, gamma: float, step_cost: float = 0.05) -> Tensor:
    """The authors' reward r_t + G_t - step_cost, [B, T]: it counts success twice. Only to reproduce them."""
    returns = aride.discounted_returns(rewards=rewards, mask=mask, gamma=gamma)
    return (rewards + returns - step_cost).masked_fill(~mask, 0.0)


@torch.no_grad()
def outcome_advantages(*, rewards: Tensor, mask: Tensor) -> Tensor:
    """Filtered cloning's: each step has its trajectory's undiscounted return R, [B, T]; 0 outside the mask."""
    returns = aride.discounted_returns(rewards=rewards, mask=mask, gamma=1.0)  # checks them; padded on either side
    total = rewards.to(returns.dtype).masked_fill(~mask, 0.0).sum(1, keepdim=True)
    return total.expand_as(returns).masked_fill(~mask, 0.0)


def _cloning_loss(*, logprob: Tensor, behavior_logprob: Tensor, advantage: Tensor, entropy: Tensor, invalid: Tensor,
                  mask: Tensor, entropy_coef: float = 0.0, invalid_coef: float = 0.0, rho_clip: float = math.inf,
                  ratio_trust: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """-mean 1[A > 0] log pi over the valid steps, cloned or not. The coefficients and bounds are A-RIDE's: unused."""
    with torch.no_grad():  # A-RIDE's checks, and its view of the ratio, so that curves can be compared
        _, metrics = aride.actor_loss(
            logprob=logprob, behavior_logprob=behavior_logprob, advantage=advantage, entropy=entropy, invalid=invalid,
            mask=mask, entropy_coef=0.0, invalid_coef=0.0, rho_clip=rho_clip)
    cloned = advantage[mask] > 0  # [N]
    loss = -(aride._accurate(logprob[mask]) * cloned).mean()
    return loss, metrics | {"policy_loss": float(loss.detach()), "cloned": float(cloned.float().mean())}


def digirl_loss(**arguments) -> tuple[Tensor, dict[str, float]]:
    """DigiRL's actor loss on `digirl_advantages`; arguments and metrics as `aride.actor_loss`'s, all [B, T].

    Its importance ratio is 1 and it has no entropy and no invalid-action term: those arguments change nothing. One more
    metric: cloned, the share of steps with A > 0.
    """
    return _cloning_loss(**arguments)


def filtered_bc_loss(**arguments) -> tuple[Tensor, dict[str, float]]:
    """Clones the steps of successes: as `digirl_loss`, on `outcome_advantages`."""
    return _cloning_loss(**arguments)


def vtrace_loss(*, logprob: Tensor, behavior_logprob: Tensor, advantage: Tensor, entropy: Tensor, invalid: Tensor,
                mask: Tensor, entropy_coef: float, invalid_coef: float = 0.0, rho_clip: float = 1.0,
                ratio_trust: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """IMPALA's policy gradient with its entropy bonus; `aride.actor_loss` without the invalid-action term and the
    trust region, whose arguments change nothing. The advantage is `aride.advantages` of `aride.vtrace` targets."""
    return aride.actor_loss(
        logprob=logprob, behavior_logprob=behavior_logprob, advantage=advantage, entropy=entropy, invalid=invalid,
        mask=mask, entropy_coef=entropy_coef, invalid_coef=0.0, rho_clip=rho_clip)
