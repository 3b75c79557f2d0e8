"""Two learner processes over gloo against one with the joint batch; and what a run with several of them is."""

import copy
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_learner import play, small

from args import Args
from data_parallel import Team
from learner import Learner
from run_folder import UsageError, load_checkpoint

ROOT = Path(__file__).resolve().parent.parent
FOLLOW = """
import json, sys, torch
from pathlib import Path
import data_parallel
from args import Args
args = Args()
args.policy.policy = Path(sys.argv[1])
for name, value in json.loads(sys.argv[2]).items():
    setattr(args.algorithm, name, value)
close = data_parallel.Team.close
def save(team):
    torch.save(learners[0].policy.state_dict(), sys.argv[3])
    close(team)
learners = []
join = data_parallel.Team.join
data_parallel.Team.join = lambda team, learner, device: (learners.append(learner), join(team, learner, device))
data_parallel.Team.close = save
sys.exit(data_parallel.follow(args, data_parallel.Team.from_environment()))
"""
CHANGES = dict(learning_starts=1, critic_warmup=2, batch_trajectories=5, learning_rate=0.01, entropy_coef=0.01)


def alone(policy, trajectories, config) -> Learner:
    learner = Learner(policy, config, seed=3)
    learner.REFRESH_EVERY = 3
    for id, trajectory in enumerate(trajectories, 1):
        learner.add(trajectory, id=id)
    return learner


def weights(learner) -> dict:
    modules = {"policy": learner.policy, "critic": learner.critic, "trajectory": learner.trajectory_critic}
    return {f"{k}.{n}": p.detach().clone() for k, m in modules.items() for n, p in m.named_parameters()}


def furthest(a: dict, b: dict) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("top", [0.0, 0.5])  # with a filter the critics' batch is not the policy's
def test_two_processes_learn_what_one_does_from_the_joint_batch(tmp_path, monkeypatch, top):
    """Shares of unequal size: 5 trajectories of 1 to 6 steps a batch. The other process starts from other critics."""
    changes = CHANGES | {"top_quantile": top}
    config = replace(Args().algorithm, **changes)
    policy = small(seed=1)
    trajectories = [play(policy, i % 2 == 0, steps=1 + i % 6, seed=i) for i in range(12)]
    for i, trajectory in enumerate(trajectories):
        trajectory.invalid[0] = i % 4 == 3
    policy.save(tmp_path / "policy.safetensors")
    one = alone(policy, trajectories, config)
    one.update()  # the team takes over a learner that has already learnt
    two = alone(small(seed=1), trajectories, config)
    two.load_state_dict(copy.deepcopy(one.state_dict()), lambda id: trajectories[id - 1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", FOLLOW, tmp_path / "policy.safetensors", json.dumps(changes), tmp_path / "end.pt"]
    other = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment, "RANK": "1"})
    try:
        for name, value in {**environment, "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        team = Team.from_environment()
        team.join(two, torch.device("cpu"))
        start = weights(one)
        for _ in range(6):
            ours, theirs = two.update(), one.update()
            assert ours.keys() == theirs.keys()
            for metrics in (ours, theirs):  # how many of the ratios of an unchanged policy are just above 1
                metrics.pop("stats/rho_clipfrac", None)
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert two.updates == 5 and furthest(start, weights(one)) > 1e-3
        assert furthest(weights(one), weights(two)) < 1e-5
        states = [learner.replay.state_dict() for learner in (one, two)]
        assert states[0]["ids"] == states[1]["ids"]
        assert np.allclose(states[0]["priorities"], states[1]["priorities"], rtol=1e-4)
        assert two.learnt.keys() == one.learnt.keys()
        for id, (update, values, advantages) in two.learnt.items():
            assert update == one.learnt[id][0]
            assert values == pytest.approx(one.learnt[id][1], abs=1e-4)
            assert advantages == pytest.approx(one.learnt[id][2], abs=1e-2)
        team.close()
        assert other.wait(timeout=20) == 0
    finally:
        other.kill()
        other.wait()
    theirs = torch.load(tmp_path / "end.pt", weights_only=True)
    assert all(torch.equal(p, theirs[name]) for name, p in two.policy.state_dict().items())


@pytest.mark.slow
def test_a_run_with_two_learners_learns_saves_itself_and_goes_on(tmp_path):
    """Phones, replay and journal belong to the first process; SIGTERM to torchrun saves, --resume takes both along."""
    runs = tmp_path / "runs"
    flags = """--num-workers 2 --total-trajectories 400 --eval-episodes 2 --learning-starts 4 --critic-warmup 2
        --batch-trajectories 3 --latency 0 --eval-every 0 --updates-per-trajectory 1 --horizon 3""".split()
    start = [sys.executable, "-u", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start.append("run_distrl.py")
    small(seed=0).save(tmp_path / "policy.safetensors")
    own = ["--policy", tmp_path / "policy.safetensors", "--runs-dir", runs]
    first = subprocess.Popen([*start, *flags, *own], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if " updates | " in line and "    0 updates" not in line:
            first.send_signal(signal.SIGTERM)
            break
    rest = first.stdout.read()
    first.wait(timeout=60)
    (run,) = runs.iterdir()
    assert "Saved" in rest and "--resume" in rest, rest
    saved = load_checkpoint(run)["learner"]["counters"]
    assert saved["updates"] > 0
    config = json.loads((run / "config.json").read_text())
    config["tasks"]["total_trajectories"] = 1  # it has had enough
    (run / "config.json").write_text(json.dumps(config))
    again = subprocess.run([*start, "--resume", run], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    results = json.loads((run / "results.json").read_text())
    assert results["updates"] >= saved["updates"] and again.stdout.count("Resumed") == 1


def test_half_of_what_torchrun_sets_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="WORLD_SIZE=2 RANK=: torchrun sets both"):
        Team.from_environment()


def test_one_process_is_no_team(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Team.from_environment() is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Team.from_environment() is None


def test_what_cannot_be_shared_is_refused():
    args = Args()
    args.algorithm.batch_trajectories = 3
    with pytest.raises(UsageError, match="--batch-trajectories 3: 4 learners need at least one each"):
        Team(0, 4).check(args)
    args.run.serial = True
    with pytest.raises(UsageError, match="--serial under torchrun"):
        Team(0, 2).check(args)


def test_a_hand_is_its_share_of_steps_and_of_trajectories(monkeypatch):
    """By hand: lengths 4, 1, 2 and 3 are dealt as (1, 3) and (2, 4): 0.4 and 0.6 of the steps, half of them each."""
    dealt = []
    monkeypatch.setattr("torch.distributed.scatter_object_list", lambda mine, hands, source: dealt.extend(hands))
    Team(0, 2).deal([10, 11, 12, 13], ["aaaa", "b", "cc", "ddd"])
    assert [(ids.tolist(), hand, *rest) for ids, hand, *rest in dealt] == [
        ([11, 13], ["b", "ddd"], 0.4, 0.5), ([12, 10], ["cc", "aaaa"], 0.6, 0.5),
    ]  # fmt: skip


def test_metrics_of_shares_are_those_of_the_joint_batch():
    """By hand: rho of 1 and 3 in one share, 2 in the other: (1 + 3 + 2)^2 / (1 + 9 + 4) / 3 = 6 / 7."""

    class Both(Team):
        def gather(self, found):
            shares = [[1.0, 3.0], [2.0]]
            return [
                ({"stats/rho_mean": np.mean(s), "stats/rho_max": max(s), "losses/trajectory_value_loss": max(s),
                  "stats/ess": sum(s) ** 2 / sum(x * x for x in s) / len(s), "losses/grad_norm": 0.5}, len(s), 1)
                for s in shares
            ]  # fmt: skip

    joint = Both(0, 2).merge(Both(0, 2).gather(None)[0][0], 2, 1)
    assert joint == pytest.approx({
        "stats/rho_mean": 2.0, "stats/rho_max": 3.0, "stats/ess": 6 / 7, "losses/grad_norm": 0.5,
        "losses/trajectory_value_loss": 2.5,
    })  # fmt: skip
