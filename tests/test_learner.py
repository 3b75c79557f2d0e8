"""The learner's own code path: what it samples and learns from, what an update moves, what a checkpoint gives back."""

import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch

import learner as module
from android_env import Action, format_action, make_prompt
from args import AlgorithmArgs
from learner import Learner
from policy import AutoUIPolicy
from replay import Trajectory

GOAL = "Open Gmail"
TAPS = [format_action(Action("DUAL_POINT", (y, 0.5), (y, 0.5))) for y in (0.25, 0.75)]


def small(seed: int = 0, d_model: int = 32, layers: int = 1) -> AutoUIPolicy:
    return AutoUIPolicy.small(seed=seed, d_model=d_model, layers=layers, heads=2, d_ff=64)


def config(**changes) -> AlgorithmArgs:
    quick = AlgorithmArgs(learning_starts=1, critic_warmup=0, batch_trajectories=4, replay_capacity=400)
    return replace(quick, **changes)


def play(policy, success, *, actions=None, steps=3, seed=0, terminated=True, tokens=None) -> Trajectory:
    """One that `policy` sampled itself, at most `tokens` an action; or of the given actions with its log-probs."""
    rng = np.random.default_rng(seed)
    steps = len(actions) if actions else steps
    features = rng.uniform(-1, 1, (steps + 1, 1408)).astype(np.float16)
    prompts = [make_prompt(GOAL, f"step {t}") for t in range(steps + 1)]
    seen = features[:-1].astype(np.float32)
    if actions:
        token_ids = [np.asarray(policy.codec.action_ids(a), np.int32) for a in actions]
        with torch.no_grad():
            evaluation = policy.evaluate(prompts[:-1], seen, token_ids)
        logprobs = [row[: len(ids)].numpy() for row, ids in zip(evaluation.token_logprob, token_ids, strict=True)]
    else:
        generator = torch.Generator().manual_seed(seed)
        output = policy.act(prompts[:-1], seen, generator=generator, max_new_tokens=tokens)
        actions, token_ids, logprobs = output.texts, output.token_ids, output.logprobs
    rewards = [0.0] * (steps - 1) + [float(bool(success))]
    return Trajectory(
        GOAL, "open_app", prompts, features, actions, token_ids, logprobs, rewards, [False] * steps, [1] * steps,
        terminated=terminated, truncated=not terminated, success=success, info={"worker": 0},
    )  # fmt: skip


def make(policy=None, trajectories=(), **changes) -> Learner:
    learner = Learner(policy or small(), config(**changes), seed=3)
    for id, trajectory in enumerate(trajectories, 1):
        learner.add(trajectory, id=id)
    return learner


def snapshot(learner: Learner) -> dict[str, torch.Tensor]:
    modules = {"policy": learner.policy, "critic": learner.critic, "trajectory_critic": learner.trajectory_critic}
    return {f"{k}.{n}": p.detach().clone() for k, m in modules.items() for n, p in m.named_parameters()}


def changed(before: dict, after: dict) -> set[str]:
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


# ---------------------------------------------------------------------- what is sampled


def test_priorities_are_what_the_learner_samples_by():
    """Case D14, through the learner's own call."""
    policy = small()
    learner = make(policy, [play(policy, True, actions=TAPS[:1], seed=i) for i in range(2)], priority_alpha=1.0)
    learner.replay.update_priorities([1, 2], [100.0, 1.0])
    drawn = np.concatenate([learner._batch()["ids"] for _ in range(250)])
    assert len(drawn) == 1000 and (drawn == 1).mean() > 0.95


def test_an_update_sets_the_priorities_of_what_it_used_and_a_refresh_of_all():
    policy = small()
    learner = make(policy, [play(policy, i % 2 == 0, seed=i) for i in range(6)])
    learner.update()
    used = learner.replay.state_dict()["priorities"]
    assert used != [1.0] * 6 and all(p >= 0 for p in used)
    learner.REFRESH_EVERY = 2
    learner.update()
    refreshed = learner.replay.state_dict()["priorities"]
    assert 1.0 not in refreshed and len(set(refreshed)) == 6
    learner.REFRESH_ROWS = 4  # the six in two batches
    learner.replay.update_priorities(learner.replay.ids, [1.0] * 6)
    learner._refresh_priorities()
    assert learner.replay.state_dict()["priorities"] == pytest.approx(refreshed, rel=1e-4)


def test_a_priority_is_the_papers_sum_over_one_known_trajectory():
    """50 mean|V_ret - V| + mean rho + 0.01 mean H, in float64 from the formula; at an update and at a refresh."""
    policy = small()
    known = play(policy, True, actions=[TAPS[0], TAPS[1], TAPS[0]], seed=1)
    known.logprobs = [row + shift for row, shift in zip(known.logprobs, (-0.05, 0.04, -0.01), strict=True)]
    learner = make(policy, [known], batch_trajectories=1, retrace_lambda=0.9)
    learner.critic_updates = 0  # of this update: the values below are those that it uses

    def expected() -> float:
        gamma, lam, batch = learner.config.gamma, 0.9, learner._batch()
        with torch.no_grad():
            evaluation = policy.evaluate(batch["prompts"], batch["features"], batch["token_ids"])
            values = learner._values(batch)[1].double().tolist()
        mu = [float(row.sum(dtype=np.float64)) for row in known.logprobs]
        rho = np.exp(evaluation.token_logprob.double().sum(1).numpy() - mu)
        correction, errors = 0.0, []
        for step in (2, 1, 0):  # delta_t = td_t + gamma c_(t+1) delta_(t+1)
            td = known.rewards[step] + gamma * (values[step + 1] if step < 2 else 0.0) - values[step]
            correction = td + (gamma * lam * min(1.0, rho[step + 1]) * correction if step < 2 else 0.0)
            errors.append(abs(correction))
        assert rho.max() > 1.1 > 0.9 > rho.min()
        return 50 * np.mean(errors) + rho.mean() + 0.01 * float(evaluation.entropy.mean())

    for change in (learner.update, learner._refresh_priorities):
        before = expected()  # an update's are of the policy that it began with
        change()
        assert learner.replay.state_dict()["priorities"] == pytest.approx([before], rel=1e-5)


def test_nothing_is_learnt_before_there_is_enough():
    """Case D13."""
    policy = small()
    learner = make(policy, learning_starts=3, updates_per_trajectory=1.0)
    for id in range(1, 4):
        assert not learner.ready
        learner.add(play(policy, True, seed=id), id=id)
    assert not learner.ready  # three: the start itself allows no update yet
    learner.add(play(policy, True, seed=9), id=9)
    assert learner.ready
    learner.update()
    assert not learner.ready  # one update a trajectory
    assert not make(small(), learning_starts=0).ready  # and never on nothing


def test_a_trajectory_without_a_verdict_is_refused():
    policy = small()
    with pytest.raises(ValueError, match="no verdict"):
        make(policy, [play(policy, None)])


# ---------------------------------------------------------------------- what an update computes


def test_C8_the_ratio_is_one_before_the_first_update():
    """Actions of mixed lengths sampled by the policy, in the learner's own path."""
    policy = small()
    trajectories = [play(policy, i % 2 == 0, steps=1 + i, seed=i, tokens=1 + 2 * i) for i in range(4)]
    assert len({len(ids) for t in trajectories for ids in t.token_ids}) > 2
    learner = make(policy, trajectories, batch_trajectories=8)
    batch = learner._batch()
    evaluation = policy.evaluate(batch["prompts"], batch["features"], batch["token_ids"])
    mu = [row.sum(dtype=np.float64) for t in batch["trajectories"] for row in t.logprobs]
    ratio = (evaluation.token_logprob.double().sum(1) - torch.tensor(mu)).exp()
    assert (ratio - 1).abs().max() < 1e-5
    metrics = learner.update()
    assert metrics["stats/rho_max"] == pytest.approx(1, abs=1e-5) and metrics["stats/ess"] == pytest.approx(1, abs=1e-5)
    assert learner.update()["stats/rho_max"] != pytest.approx(1, abs=1e-5)


def test_the_terminal_step_is_in_the_batch_and_is_learnt_from():
    """Cases C4 and C2: a trajectory of one step is nothing but its terminal step."""
    policy = small()
    longer = play(policy, True, actions=[TAPS[0], TAPS[1], TAPS[0]], seed=1)
    learner = make(policy, [longer], batch_trajectories=1, retrace_lambda=1.0)
    batch = learner._batch()
    assert batch["mask"].tolist() == [[True] * 3] and batch["terminated"].tolist() == [[False, False, True]]
    assert batch["rewards"].tolist() == [[0, 0, 1]]
    values = torch.tensor([0.1, 0.2, 0.3, 0.9])  # the last is of the state after the end: it must not count
    targets, advantages = learner._targets(batch, torch.zeros(1, 3), values)
    gamma = learner.config.gamma
    assert targets[0].tolist() == pytest.approx([gamma**2, gamma, 1.0])
    assert advantages[0].tolist() == pytest.approx([gamma**2 - 0.1, gamma - 0.2, 0.7])
    cut = make(policy, [play(policy, False, actions=TAPS, seed=1, terminated=False)], batch_trajectories=1,
               retrace_lambda=1.0)  # fmt: skip
    targets, _ = cut._targets(cut._batch(), torch.zeros(1, 2), torch.tensor([0.1, 0.2, 0.9]))
    assert targets[0].tolist() == pytest.approx([0.9 * gamma**2, 0.9 * gamma])  # truncated: bootstraps from 0.9

    policy = small()
    single = play(policy, True, actions=TAPS[:1])
    learner = make(policy, [single], entropy_coef=0.0, learning_rate=1e-2)
    before = float(single.logprobs[0].sum())
    for _ in range(3):
        learner.update()
    with torch.no_grad():
        after = policy.evaluate(single.prompts[:1], single.features[:1].astype(np.float32), single.token_ids)
    assert float(after.logprob) > before


def test_warmup_moves_the_critics_alone_then_all_move():
    policy = small()
    learner = make(policy, [play(policy, i % 2 == 0, seed=i) for i in range(4)], critic_warmup=1)
    first = snapshot(learner)
    learner.update()
    second = snapshot(learner)
    assert changed(first, second) == {"critic", "trajectory_critic"} and learner.updates == 0
    metrics = learner.update()
    assert changed(second, snapshot(learner)) == {"policy", "critic", "trajectory_critic"}
    assert learner.updates == 1
    losses = "policy_loss value_loss trajectory_value_loss entropy invalid_penalty grad_norm".split()
    assert {*(f"losses/{name}" for name in losses), "stats/ess", "stats/rho_clipfrac"} <= metrics.keys()


def test_the_critic_learns_who_succeeds():
    policy = small()
    good, bad = play(policy, True, seed=1), play(policy, False, seed=2)
    learner = make(policy, [good, bad], critic_warmup=40)
    for _ in range(40):
        metrics = learner.update()
    batch = learner._batch([good, bad], np.array([1, 2]))
    _, values = learner._values(batch)
    assert values[2] > 0.8 > 0.2 > values[6]  # the states before each one's last action
    assert metrics["losses/trajectory_value_loss"] < 0.3


def test_without_advantages_the_entropy_bonus_spreads_the_policy(monkeypatch):
    """Case C13."""
    policy = small()
    trajectory = play(policy, True)
    learner = make(policy, [trajectory], entropy_coef=1.0, learning_rate=1e-2)
    targets = learner._targets
    monkeypatch.setattr(learner, "_targets", lambda *a: (targets(*a)[0], torch.zeros(targets(*a)[1].shape)))
    entropies = [learner.update()["losses/entropy"] for _ in range(10)]
    assert entropies[-1] > entropies[0]


# ---------------------------------------------------------------------- what is not finite


def test_a_loss_that_is_not_finite_changes_no_parameter(monkeypatch):
    """Case C16; the critics' good steps in between do not hide it."""
    policy = small()
    learner = make(policy, [play(policy, True, seed=i) for i in range(3)])
    learner.update()
    moments = copy.deepcopy(learner.policy_optimizer.state_dict())
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    loss = module.aride.actor_loss
    monkeypatch.setattr(module.aride, "actor_loss", lambda **k: (loss(**k)[0] * float("nan"), loss(**k)[1]))
    learner.update()
    assert learner.skipped == 1
    assert all(torch.equal(before[name], p) for name, p in policy.named_parameters())
    after = learner.policy_optimizer.state_dict()["state"]
    assert all(torch.equal(x, after[i][k]) for i, old in moments["state"].items() for k, x in old.items())
    learner.update()
    with pytest.raises(FloatingPointError, match="three times in a row: lower --learning-rate"):
        learner.update()
    monkeypatch.undo()
    assert learner.update()["losses/grad_norm"] > 0  # the fourth is fine again


def test_a_trajectory_critic_that_is_not_finite_ends_the_run_with_a_remedy():
    policy = small()
    learner = make(policy, [play(policy, True, seed=i) for i in range(3)])
    with torch.no_grad():
        next(learner.trajectory_critic.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="lower --learning-rate"):
        for _ in range(3):
            learner.update()
    assert all(p.isfinite().all() for p in learner.critic.parameters())


@pytest.mark.parametrize("algo", ["aride", "vtrace", "digirl", "filtered_bc"])
def test_weights_that_are_not_finite_end_the_run_with_a_remedy(algo):
    policy = small()
    learner = make(policy, [play(policy, True, seed=i) for i in range(3)], algo=algo)
    learner.REFRESH_EVERY = learner.updates = 1
    before = learner.replay.state_dict()["priorities"]
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="lower --learning-rate"):
        for _ in range(3):
            learner.update()
    assert learner.skipped == (5 if algo == "vtrace" else 3)  # IMPALA's critic looks at the policy, too
    assert learner.replay.state_dict()["priorities"] == before


# ---------------------------------------------------------------------- checkpoints


def test_resumes_bit_for_bit():
    policy = small()
    trajectories = {i: play(policy, i % 2 == 0, seed=i) for i in range(1, 6)}
    one = make(policy, trajectories.values(), critic_warmup=2)
    for _ in range(4):
        one.update()
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two = Learner(small(seed=5), config(critic_warmup=2), seed=77)
    two.load_state_dict(torch.load(file, weights_only=True), trajectories.__getitem__)
    for _ in range(3):
        assert one.update() == two.update()
    assert changed(snapshot(one), snapshot(two)) == set()
    assert (one.updates, one.seen, one.critic_steps) == (two.updates, two.seen, two.critic_steps) == (5, 5, 2)


def test_a_policy_of_another_size_is_refused_with_both_shapes():
    """Case F7."""
    state, other = make().state_dict(), make(small(d_model=48))
    before = snapshot(other)
    with pytest.raises(ValueError, match=r"another size.*, 32\) in the checkpoint, .*, 48\) here"):
        other.load_state_dict(state, None)
    assert changed(before, snapshot(other)) == set()


@pytest.mark.parametrize(("there", "here", "words"), [
    (2, 1, r": \([\d, ]+\) in the checkpoint, absent here"), (1, 2, r": absent in the checkpoint, \([\d, ]+\) here"),
])  # fmt: skip
def test_a_policy_with_more_or_fewer_layers_is_refused_too(there, here, words):
    state, other = make(small(layers=there)).state_dict(), make(small(layers=here))
    before = snapshot(other)
    with pytest.raises(ValueError, match=r"another size: put .* back; \d+ tensors.*block\.1\..*" + words):
        other.load_state_dict(state, None)
    assert changed(before, snapshot(other)) == set()


# ---------------------------------------------------------------------- it learns


def test_a_bandit_is_learnt():
    """Two actions, one succeeds: its probability rises, in absolute terms and over the other's."""
    policy = small(seed=2)
    learner = make(policy, learning_rate=5e-3, critic_warmup=20, learning_starts=8, batch_trajectories=8)

    def logprobs() -> np.ndarray:
        trials = [play(policy, True, actions=[tap], seed=99) for tap in TAPS]
        return np.array([float(t.logprobs[0].sum()) for t in trials])

    before, id = logprobs(), 0
    for turn in range(5):
        for arm in (0, 1) * 4:
            id += 1
            learner.add(play(policy, arm == 0, actions=[TAPS[arm]], seed=100 + id), id=id)
        for _ in range(40 if turn == 0 else 8):
            if learner.ready:
                learner.update()
    after = logprobs()
    assert learner.updates >= 16
    assert after[0] > before[0] + 1
    assert after[0] - after[1] > before[0] - before[1] + 0.5
