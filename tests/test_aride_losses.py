"""aride.py's ratio, advantages and losses: by hand, signs and gradients, what padding and bad input do."""

import math

import pytest
import torch
from test_aride import actor, always, cast, close, never, t

import aride
from baselines import authors_rewards

# ---- the actor's loss

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
    for changes in ({"rho_clip": -1.0}, {"rho_clip": math.nan}, {"ratio_trust": -0.5}):
        with pytest.raises(ValueError, match=rf"{next(iter(changes))} must be in \[0, inf\], got"):
            actor(**changes)
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
    with pytest.raises(ValueError, match="overflows torch.float32"):  # not a 0 in silence
        aride.normalise_advantages(advantage=t([[1e20, -1e20]]), mask=torch.ones(1, 2, dtype=torch.bool))
    shifted = aride.normalise_advantages(advantage=t([[1.0, 1.1]]), mask=torch.ones(1, 2, dtype=torch.bool))
    assert (shifted > 0).all()  # not centred: what was good stays good
    assert (aride.normalise_advantages(advantage=0 * advantage, mask=mask) == 0).all()
    for changes in ({"clip": -3.0}, {"negative_scale": -0.3}):
        with pytest.raises(ValueError, match=rf"{next(iter(changes))} must be in \[0, inf\], got"):
            aride.normalise_advantages(advantage=advantage, mask=mask, **changes)
    with pytest.raises(ValueError, match="advantage"):
        aride.normalise_advantages(advantage=t([[math.nan]]), mask=torch.ones(1, 1, dtype=torch.bool))


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
    with pytest.raises(ValueError, match="rho_clip must be in"):
        aride.trajectory_priorities(td_error=torch.ones(1, 1), rho=torch.ones(1, 1), entropy=torch.ones(1, 1),
                                    mask=mask[:1, :1], rho_clip=-1.0)
    with pytest.raises(ValueError, match="td_error"):
        aride.trajectory_priorities(td_error=t([[math.nan]]), rho=torch.ones(1, 1), entropy=torch.ones(1, 1),
                                    mask=mask[:1, :1])


def test_c17_double_softmax_and_the_step_cost_is_an_argument():
    logits = torch.tensor([[0.0, 2.0]])
    got = aride.trajectory_value_loss(logits=logits[:, 1] - logits[:, 0], outcomes=torch.tensor([True]))[0]
    assert float(got) == pytest.approx(0.126928, abs=1e-6)
    for cost in (0.0, 0.05, 1.0):
        shaped = authors_rewards(rewards=t([[0.0, 1.0]]), mask=always(t([[0.0, 1]])), gamma=0.5, step_cost=cost)
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
