"""Baselines by hand and by identities, a whole update with each; the ablations' flags: what they change, no more."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_learner import TAPS, changed, config, make, play, small, snapshot

import aride
import baselines
import learner as module
from args import AlgorithmArgs, Args, check_unused, prepare
from run_folder import UsageError

ALGORITHMS = ("aride", "digirl", "digirl_paper", "filtered_bc", "vtrace")
LOSSES = (baselines.digirl_loss, baselines.filtered_bc_loss, baselines.vtrace_loss)


def steps(**changes) -> dict:
    """A success of three steps and a failure of two, [2, 3]; what is outside the mask must not matter."""
    mask = torch.tensor([[True, True, True], [True, True, False]])
    x = dict(
        rewards=torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 77.0]]), mask=mask,
        values=torch.tensor([[0.3, 0.9, 0.4], [0.2, 0.4, 5.0]]),
        next_values=torch.tensor([[0.9, 0.4, 9.0], [0.4, 9.0, 5.0]]),
        terminated=torch.tensor([[False, False, True], [False, True, False]]),
    )  # fmt: skip
    return x | changes


def actions(seed: int = 0, shape=(3, 4), **changes) -> dict:
    """Arguments of an actor loss, [B, T]."""
    random = torch.Generator().manual_seed(seed)
    x = dict(
        logprob=-3 * torch.rand(shape, generator=random), behavior_logprob=-3 * torch.rand(shape, generator=random),
        advantage=torch.randn(shape, generator=random), entropy=torch.rand(shape, generator=random),
        invalid=torch.zeros(shape, dtype=torch.bool), mask=torch.ones(shape, dtype=torch.bool),
        entropy_coef=0.1, invalid_coef=0.2,
    )  # fmt: skip
    x["mask"][0, 2:] = False
    x["invalid"][1, 1] = True
    x["logprob"].requires_grad_()
    return x | changes


def gradient(loss, arguments: dict) -> torch.Tensor:
    arguments["logprob"].grad = None
    loss.backward()
    return arguments["logprob"].grad


# ---------------------------------------------------------------------- advantages


def test_digirl_advantages_of_its_code_by_hand():
    found = baselines.digirl_advantages(**steps(), gamma=0.5)
    success = [0.0 + 0.25 - 0.05 + 0.9 - 0.3, 0.0 + 0.5 - 0.05 + 0.4 - 0.9, 1.0 + 1.0 - 0.05 - 0.4]
    failure = [-0.05 + 0.4 - 0.2, -0.05 - 0.4, 0.0]
    assert torch.allclose(found, torch.tensor([success, failure]), atol=1e-6)


def test_padding_may_lie_on_either_side_and_gamma_is_checked():
    mask, rewards = torch.tensor([[False, True, True]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert baselines.outcome_advantages(rewards=rewards, mask=mask).tolist() == [[0.0, 1.0, 1.0]]
    zero = torch.zeros(1, 3)
    terms = dict(rewards=rewards, values=zero, next_values=zero, terminated=torch.tensor([[False, False, True]]))
    found = baselines.digirl_advantages(**terms, mask=mask, gamma=0.5, published=True)
    assert torch.allclose(found, torch.tensor([[0.0, 0.45, 0.95]]))  # gamma + (1 - gamma) 0 - 1/20; 1 - 1/20
    with pytest.raises(ValueError, match="gamma must be in"):
        baselines.digirl_advantages(**terms, mask=mask, gamma=1.5, published=True)


def test_digirl_advantages_of_its_paper_by_hand():
    found = baselines.digirl_advantages(**steps(), gamma=0.5, published=True)
    success = [0.25 * 1 + 0.75 * (0.9 - 0.3), 0.5 * 1 + 0.5 * (0.4 - 0.9), 1.0]
    failure = [0.5 * 0 + 0.5 * (0.4 - 0.2), 0.0]
    wanted = torch.tensor([success, [*failure, 0.05]]) - 1 / 20
    assert torch.allclose(found, wanted, atol=1e-6)
    only_outcome = baselines.digirl_advantages(**steps(), gamma=1.0, published=True) + 1 / 20
    assert torch.allclose(only_outcome[0], torch.ones(3))  # w = 1: the outcome, whatever V
    one_step = baselines.digirl_advantages(**steps(), gamma=0.0, published=True) + 1 / 20
    assert torch.allclose(one_step[:, 0], aride.td_errors(**steps(), gamma=1.0)[:, 0])  # w = 0 but at the end


@pytest.mark.parametrize("published", [False, True])
def test_a_cut_episode_bootstraps_and_nan_is_refused(published):
    cut = steps(terminated=torch.zeros(2, 3, dtype=torch.bool))
    ended, other = (baselines.digirl_advantages(**x, gamma=0.5, published=published) for x in (steps(), cut))
    if not published:  # the paper's last weight is the outcome's alone
        assert torch.allclose(other[0, 2] - ended[0, 2], torch.tensor(9.0))
    bad = steps()
    bad["values"][0, 1] = math.nan
    with pytest.raises(ValueError, match=r"values .* the first at \[0, 1\]"):
        baselines.digirl_advantages(**bad, gamma=0.5, published=published)


def test_cloning_takes_the_steps_of_successes():
    found = baselines.outcome_advantages(rewards=steps()["rewards"], mask=steps()["mask"])
    assert found.tolist() == [[1, 1, 1], [0, 0, 0]]


# ---------------------------------------------------------------------- losses


@pytest.mark.parametrize("loss", [baselines.digirl_loss, baselines.filtered_bc_loss])
def test_cloning_by_hand_and_its_gradient(loss):
    x = actions()
    value, metrics = loss(**x)
    cloned, n = (x["advantage"] > 0) & x["mask"], int(x["mask"].sum())
    assert 0 < cloned.sum() < n
    assert float(value.detach()) == pytest.approx(-float(x["logprob"].detach()[cloned].sum()) / n, rel=1e-6)
    assert torch.allclose(gradient(value, x), -cloned.float() / n)  # what is not cloned is not pushed away
    assert metrics["cloned"] == pytest.approx(int(cloned.sum()) / n)
    assert metrics["policy_loss"] == pytest.approx(float(value.detach()))


def test_cloning_computes_in_the_precision_given_and_never_in_half():
    double = {name: x.detach().double() for name, x in actions().items() if name in ("logprob", "advantage")}
    assert baselines.digirl_loss(**actions(**double))[0].dtype == torch.float64
    half = torch.tensor([[0.3, 256.0, 1.0, 1.0]]).bfloat16()
    found = baselines.outcome_advantages(rewards=half, mask=torch.ones(1, 4, dtype=torch.bool))
    assert found.dtype == torch.float32 and found[0, 0] == half.double().sum().float()


@pytest.mark.parametrize("loss", [baselines.digirl_loss, baselines.filtered_bc_loss])
def test_cloning_weighs_no_ratio_and_has_no_other_term(loss):
    value = float(loss(**actions())[0].detach())
    for change in (
        {"behavior_logprob": torch.full((3, 4), -9.0)}, {"entropy_coef": 5.0}, {"invalid_coef": 5.0}, {"rho_clip": 0.1},
        {"ratio_trust": 0.01}, {"advantage": 1000 * actions()["advantage"]},
    ):  # fmt: skip
        assert float(loss(**actions(**change))[0].detach()) == value, change


def test_cloning_is_a_rides_binarised_loss_on_its_own_data():
    x = actions(entropy_coef=0.0, invalid_coef=0.0)
    on_policy = x | {"behavior_logprob": x["logprob"].detach()}
    wanted = gradient(aride.actor_loss(**on_policy, binarise=True)[0], x).clone()
    assert torch.allclose(gradient(baselines.digirl_loss(**x)[0], x), wanted)


def test_vtrace_on_its_own_data_is_the_policy_gradient():
    x = actions()
    x["behavior_logprob"] = x["logprob"].detach()
    value, metrics = baselines.vtrace_loss(**x)
    wanted = -(x["advantage"] * x["mask"]) / x["mask"].sum()
    assert torch.allclose(gradient(value, x), wanted, atol=1e-6) and metrics["rho_max"] == pytest.approx(1)


def test_vtrace_clips_the_ratio_and_has_the_entropy_bonus_alone():
    x = actions()
    far = x | {"behavior_logprob": x["logprob"].detach() - 2.0}  # rho = e^2
    wanted = -(x["advantage"] * x["mask"]) / x["mask"].sum()
    assert torch.allclose(gradient(baselines.vtrace_loss(**far)[0], x), wanted, atol=1e-6)
    assert torch.allclose(gradient(baselines.vtrace_loss(**far, rho_clip=1.5)[0], x), 1.5 * wanted, atol=1e-6)
    value = float(baselines.vtrace_loss(**x)[0].detach())
    for change in ({"invalid_coef": 5.0}, {"ratio_trust": 0.01}):
        assert float(baselines.vtrace_loss(**x | change)[0].detach()) == value
    more = float(baselines.vtrace_loss(**x | {"entropy_coef": 1.1})[0].detach())
    assert value - more == pytest.approx(float(x["entropy"][x["mask"]].mean()), rel=1e-5)


def test_vtrace_targets_with_ratio_one_are_n_step_returns():
    x = steps()
    targets = aride.vtrace(**x, log_rho=torch.zeros(2, 3), gamma=0.9, lam=1.0)
    returns = aride.discounted_returns(rewards=x["rewards"], mask=x["mask"], gamma=0.9)
    assert torch.allclose(targets, returns, atol=1e-6)
    found = aride.advantages(**x, targets=targets, gamma=0.9)
    assert torch.allclose(found, (returns - x["values"]) * x["mask"], atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_takes_what_a_rides_takes_and_tells_what_it_tells(loss):
    x = actions(rho_clip=1.0, ratio_trust=0.5)
    metrics = loss(**x)[1]
    assert aride.actor_loss(**x)[1].keys() <= metrics.keys() and all(map(math.isfinite, metrics.values()))
    assert x.keys() == inspect.signature(aride.actor_loss).parameters.keys() - {"binarise"}
    with pytest.raises(ValueError, match=r"one shape \[B, T\], got .*advantage \(2, 4\)"):
        loss(**x | {"advantage": torch.zeros(2, 4)})
    bad = x | {"advantage": torch.full((3, 4), math.nan)}
    with pytest.raises(ValueError, match="advantage .* NaN"):
        loss(**bad)


# ---------------------------------------------------------------------- a learner's update


def learner_of(algo: str = "aride", **changes) -> module.Learner:
    policy = small()
    trajectories = [play(policy, i % 2 == 0, actions=[TAPS[i % 2], TAPS[0]], seed=i) for i in range(8)]
    return make(policy, trajectories, **{"algo": algo, "learning_rate": 1e-2} | changes)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_update_moves_what_the_algorithm_trains(algo):
    learner = learner_of(algo)
    before = snapshot(learner)
    for _ in range(3):
        metrics = learner.update()
    critics = set() if algo == "filtered_bc" else {"critic", "trajectory_critic"}
    assert changed(before, snapshot(learner)) == {"policy"} | critics
    assert learner.updates == 3 and learner.skipped == 0
    assert ("losses/value_loss" in metrics) == bool(critics)
    assert all(map(math.isfinite, metrics.values())) and metrics["losses/grad_norm"] > 0
    assert ("stats/cloned" in metrics) == (algo in ("digirl", "digirl_paper", "filtered_bc"))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_succeeds_becomes_likelier(algo):
    """The same policy and actions; once the first one succeeds, once the second."""

    def after(best: int) -> tuple[float, float]:
        """(how much likelier the best became, log pi of the first over the second)"""
        policy = small()
        trials = [play(policy, arm == best, actions=[TAPS[arm]], seed=i) for i, arm in enumerate((0, 1) * 4)]
        learner = make(policy, trials, algo=algo, learning_rate=1e-2, critic_warmup=20, batch_trajectories=8)
        while learner.updates < 8:
            learner.update()
        batch = learner._batch(trials, np.arange(1, 9))
        with torch.no_grad():
            logprob = policy.evaluate(batch["prompts"], batch["features"], batch["token_ids"]).logprob.reshape(4, 2)
        before = batch["behavior_logprob"].reshape(4, 2)
        return float((logprob - before)[:, best].mean()), float((logprob[:, 0] - logprob[:, 1]).mean())

    (first, with_first), (second, with_second) = after(0), after(1)
    assert first > 0 and second > 0 and with_first > with_second


def test_cloning_learns_nothing_from_failures():
    policy = small()
    learner = make(policy, [play(policy, False, seed=i) for i in range(4)], algo="filtered_bc")
    before = snapshot(learner)
    assert learner.update()["stats/cloned"] == 0.0 and changed(before, snapshot(learner)) == set()


def test_each_baseline_learns_its_own_labels():
    """DigiRL's V is the probability of success, V-trace's and A-RIDE's the discounted return."""
    for algo, soft, wanted in (("aride", True, [0.9, 1]), ("vtrace", True, [0.9, 1]), ("digirl", False, [1, 1])):
        learner = learner_of(algo)
        batch = learner._batch([play(learner.policy, True, actions=TAPS, seed=1)], np.array([1]))
        labels, is_soft = learner._labels(batch, torch.tensor([0.2, 0.3, 0.9]))
        assert is_soft == soft and labels[0].tolist() == pytest.approx(wanted)


def test_the_critic_of_vtrace_is_corrected_once_the_policy_has_moved():
    learner = learner_of("vtrace")
    batch = learner._batch()
    values = torch.rand(len(batch["all_prompts"]), generator=torch.Generator().manual_seed(0))
    on_policy, _ = learner._labels(batch, values)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.mul_(1.05)
    assert torch.equal(learner._labels(batch, values)[0], on_policy)  # no update yet: this policy acted
    learner.updates = 1
    corrected, _ = learner._labels(batch, values)
    terms = learner._terms(batch, values)
    log_rho = learner._scores(batch)[0] - batch["behavior_logprob"]
    assert log_rho.abs().max() > 0.01 and not torch.equal(corrected, on_policy)
    assert torch.equal(corrected, aride.vtrace(**terms, truncated=batch["truncated"], log_rho=log_rho, lam=1.0))


def test_baselines_draw_uniformly_from_the_best_tenth():
    policy = small()
    trajectories = [play(policy, i < 4, actions=TAPS[:1], seed=i) for i in range(40)]
    learner = make(policy, trajectories, algo="filtered_bc", batch_trajectories=8)
    learner.replay.update_priorities(range(1, 41), [1e6, *[1.0] * 39])
    drawn = np.concatenate([learner._batch(top=learner.top)["ids"] for _ in range(60)])
    assert set(drawn) == {1, 2, 3, 4} and (drawn == 1).mean() < 0.4  # R alone ranks: the successes, all alike

    learner = make(policy, trajectories, algo="digirl", batch_trajectories=8)
    logits = dict(zip(map(id, trajectories), [5.0, -5.0, 5.0, -5.0, *[-9.0] * 36], strict=True))
    learner._trajectory_logits = lambda held: torch.tensor([logits[id(trajectory)] for trajectory in held])
    drawn = np.concatenate([learner._batch(top=learner.top)["ids"] for _ in range(30)])
    assert set(drawn) == {1, 2, 3, 4}  # four of forty: the successes, expected or not
    drawn = np.concatenate([learner._batch(top=0.05)["ids"] for _ in range(30)])
    assert set(drawn) == {2, 4}  # the two that V_traj did not expect
    drawn = np.concatenate([learner._batch()["ids"] for _ in range(30)])
    assert len(set(drawn)) > 30  # the critics' batches


@pytest.mark.parametrize("algo", baselines.UNUSED)
def test_flags_that_are_refused_would_have_changed_nothing(algo):
    others = {"priority_weights": (1.0, 2.0, 3.0), "target": "vtrace", "ratio_trust": 0.01}
    changes = {flag: others.get(flag, 0.25) for flag in baselines.UNUSED[algo].split()}
    for flag, value in changes.items():
        assert value != getattr(AlgorithmArgs, flag)
        with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')}: --algo {algo} does not use it"):
            check_unused(replace(AlgorithmArgs(algo=algo), **{flag: value}))
    check_unused(AlgorithmArgs(algo=algo))
    assert ("gamma" in changes) == ("critic_warmup" in changes) == (algo == "filtered_bc")
    runs = [learner_of(algo), learner_of(algo, **changes)]
    for learner in runs:
        for _ in range(2):
            learner.update()
    assert runs[0].updates == runs[1].updates == 2 and changed(*map(snapshot, runs)) == set()


@pytest.mark.parametrize(("flags", "name"), [
    ({"target": "one_step", "retrace_lambda": 0.9}, "--retrace-lambda: --target one_step"),
    ({"priority_alpha": 0.0, "priority_weights": (1.0, 0.0, 0.0)}, "--priority-weights: --priority-alpha 0"),
])  # fmt: skip
def test_flags_that_another_one_makes_void_are_refused(flags, name):
    with pytest.raises(UsageError, match=f"{name} does not use it: leave it out"):
        check_unused(AlgorithmArgs(**flags))
    for flag, value in flags.items():
        check_unused(AlgorithmArgs(**{flag: value}))


# ---------------------------------------------------------------------- ablations of A-RIDE


def observe(monkeypatch, **changes) -> dict:
    """What one update does, on the same four trajectories: its draws, V's labels, the arguments of the loss."""
    learner = learner_of(**changes)
    seen: dict = {"tops": [], "labels": [], "priorities": []}
    ids, trajectories = learner.replay.get([1, 2, 3, 4])
    trajectories[0].invalid[0] = True  # an action that no rule could read
    labels, loss, update = learner._labels, aride.actor_loss, learner.replay.update_priorities

    def sample(batch, **how):
        seen["tops"].append(how["top"])
        return ids, trajectories, None

    def label(*arguments):
        seen["labels"].append(labels(*arguments)[0])
        return labels(*arguments)

    def actor_loss(**arguments):
        seen.update({name: x.detach().clone() if torch.is_tensor(x) else x for name, x in arguments.items()})
        seen["loss"], metrics = loss(**arguments)
        return seen["loss"], metrics

    def update_priorities(ids, priorities, values=None):
        seen["priorities"].append(torch.as_tensor(np.array(priorities)))
        return update(ids, priorities, values=values)

    monkeypatch.setattr(learner.replay, "sample", sample)
    monkeypatch.setattr(learner.replay, "update_priorities", update_priorities)
    monkeypatch.setattr(learner, "_labels", label)
    monkeypatch.setattr(module.aride, "actor_loss", actor_loss)
    learner.update()
    monkeypatch.undo()
    return seen


def differ(one: dict, two: dict) -> set[str]:
    def same(a, b) -> bool:
        if isinstance(a, list):
            return len(a) == len(b) and all(map(same, a, b))
        return torch.equal(a, b) if torch.is_tensor(a) else a == b

    return {name for name in one if not same(one[name], two[name])}


@pytest.mark.parametrize(("changes", "wanted"), [
    ({"priority_alpha": 0.0}, set()),  # DPER: the draw alone, see the next test
    ({"target": "one_step"}, {"advantage", "priorities", "loss"}),  # V's labels stay
    ({"target": "vtrace"}, {"loss"}),  # on-policy: equal but for rounding
    ({"retrace_lambda": 1.0}, {"priorities"}),  # of two steps: no advantage has a trace; V's labels stay
    ({"entropy_coef": 0.0}, {"entropy_coef", "loss"}),
    ({"invalid_coef": 0.0}, {"invalid_coef", "loss"}),
    ({"top_quantile": 0.5}, {"tops", "priorities"}),  # V_traj is set with the priorities that there are
    ({"priority_weights": (1.0, 0.0, 0.0)}, {"priorities"}),
    ({"rho_clip": 0.5}, {"rho_clip", "loss"}),
])  # fmt: skip
def test_an_ablation_changes_what_it_says_and_nothing_else(monkeypatch, changes, wanted):
    default, other = observe(monkeypatch), observe(monkeypatch, **changes)
    assert differ(default, observe(monkeypatch)) == set()
    found = differ(default, other)
    if changes.get("target") == "vtrace":
        found = {name for name in found if name not in ("advantage", "labels", "priorities")}
        assert torch.allclose(default["advantage"], other["advantage"], atol=1e-6)
    assert found == wanted or found == wanted - {"loss"} == set()
    if "entropy_coef" in changes:
        bonus = 0.003 * float(default["entropy"].mean())
        assert float((other["loss"] - default["loss"]).detach()) == pytest.approx(bonus, rel=1e-3)
    if "top_quantile" in changes:
        assert default["tops"] == [None] * 3 and other["tops"] == [None] * 3 + [0.5]  # the critics learn from all


def test_without_dper_priorities_are_not_drawn_by():
    for alpha, lowest, highest in ((1.0, 0.95, 1.0), (0.0, 0.4, 0.6)):
        learner = make(small(), [play(small(), True, actions=TAPS[:1], seed=i) for i in range(2)], priority_alpha=alpha)
        learner.replay.update_priorities([1, 2], [100.0, 1.0])
        drawn = np.concatenate([learner._batch()["ids"] for _ in range(250)])
        assert lowest <= (drawn == 1).mean() <= highest


def test_without_retrace_the_advantage_is_the_papers_one_step_formula():
    learner = learner_of(target="one_step", gamma=0.9)
    batch = learner._batch([play(learner.policy, True, actions=[TAPS[0]] * 3, seed=1)], np.array([1]))
    targets, advantages = learner._targets(batch, torch.full((1, 3), 7.0), torch.tensor([0.1, 0.2, 0.3, 0.9]))
    assert advantages[0].tolist() == pytest.approx([0.9 * 0.2 - 0.1, 0.9 * 0.3 - 0.2, 1 - 0.3])
    assert targets[0].tolist() == pytest.approx([0.18, 0.27, 1.0])
    labels, soft = learner._labels(batch, torch.tensor([0.1, 0.2, 0.3, 0.9]))
    assert soft and labels[0].tolist() == pytest.approx([0.81, 0.9, 1.0])  # V still learns what happened


def test_with_vtrace_in_the_place_of_retrace_every_td_error_is_weighed():
    """By hand, every rho e^-0.7: V-trace weighs a step by its own ratio, Retrace only the later ones."""
    r, values = math.exp(-0.7), torch.tensor([0.1, 0.2, 0.3, 0.9])
    found = {}
    for target in ("retrace", "vtrace"):
        learner = learner_of(target=target, gamma=0.9, retrace_lambda=1.0)
        batch = learner._batch([play(learner.policy, True, actions=[TAPS[0]] * 3, seed=1)], np.array([1]))
        found[target] = [x[0].tolist() for x in learner._targets(batch, torch.full((1, 3), -0.7), values)]
    td, g = (0.9 * 0.2 - 0.1, 0.9 * 0.3 - 0.2, 1 - 0.3), 0.9
    retrace = [0.1 + td[0] + g * r * td[1] + g * r * g * r * td[2], 0.2 + td[1] + g * r * td[2], 0.3 + td[2]]
    vtrace = [0.1 + r * td[0] + g * r * r * td[1] + g * g * r**3 * td[2], 0.2 + r * td[1] + g * r * r * td[2],
              0.3 + r * td[2]]  # fmt: skip
    for target, wanted in (("retrace", retrace), ("vtrace", vtrace)):
        assert found[target][0] == pytest.approx(wanted)
        assert found[target][1] == pytest.approx([g * wanted[1] - 0.1, g * wanted[2] - 0.2, 1 - 0.3])


def test_the_filter_keeps_the_priorities():
    learner = learner_of(top_quantile=0.5)
    learner.replay.update_priorities(range(1, 9), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    before = learner.replay.state_dict()
    learner._batch(top=0.5)
    after = learner.replay.state_dict()
    assert after["priorities"] == before["priorities"] and after["masses"] == before["masses"]
    assert after["values"] != before["values"] and all(0 < v < 1 for v in after["values"])


# ---------------------------------------------------------------------- the default, and the flags


def test_the_default_update_is_what_it_was_before_there_were_baselines():
    """Numbers printed by the code of then, for the same seeds; its lambda was 1."""
    assert AlgorithmArgs().algo == "aride" and config().top_quantile is None
    learner = learner_of(retrace_lambda=1.0)
    learner.REFRESH_EVERY = 3
    start = snapshot(learner)
    for _ in range(4):
        metrics = learner.update()
    end = snapshot(learner)
    moved = {part: sum(float((end[name] - start[name]).abs().sum()) for name in start if name.split(".")[0] == part)
             for part in ("policy", "critic", "trajectory_critic")}  # fmt: skip
    assert moved == pytest.approx(MOVED, rel=0.01)
    assert {name: metrics[name] for name in METRICS} == pytest.approx(METRICS, rel=0.01)


MOVED = {"policy": 25.4596, "critic": 1863.05, "trajectory_critic": 1035.16}  # sums of absolute changes
METRICS = {
    "losses/value_loss": 0.155369, "losses/trajectory_value_loss": 0.172811, "losses/policy_loss": 23.0585,
    "losses/entropy": 5.9773, "stats/rho_mean": 1.35324, "stats/trust_dropped": 0.125, "losses/grad_norm": 14.75205,
}  # fmt: skip


def test_flags_are_checked(tmp_path):
    args = Args()
    args.run.runs_dir = tmp_path
    args.algorithm.top_quantile = 0.0
    with pytest.raises(UsageError, match="--top-quantile 0.0: 0.001 to 1 is needed"):
        prepare(args)
    args.algorithm = AlgorithmArgs(algo="digirl", entropy_coef=0.1)
    with pytest.raises(UsageError, match="--entropy-coef: --algo digirl does not use it"):
        prepare(args)


def test_G4_a_run_whose_tests_are_trained_on_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("Open the calculator app\nShow my notifications\n")
    (tmp_path / "test.txt").write_text("show my notifications\nOpen the camera app\n")
    args = Args()
    args.run.runs_dir = tmp_path / "runs"
    args.tasks.tasks, args.tasks.eval_tasks, args.tasks.eval_episodes = tmp_path / "train.txt", tmp_path / "test.txt", 2
    with pytest.raises(UsageError, match="1 of 2 tasks to evaluate on are trained on too.*--allow-overlap"):
        prepare(args)
    assert not args.run.runs_dir.exists()
    args.tasks.allow_overlap = True
    assert prepare(args)[2].is_dir()
