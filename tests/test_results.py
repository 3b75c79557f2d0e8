"""Evaluations as numbers: unknown verdicts are not failures, greedy and sampled stay apart."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import args as flags
import card as cards
from card import code_hash, evaluation_card
from evaluator import JudgeConfig
from results import (
    METRICS,
    append_metrics,
    breakdown,
    flips,
    priority_ess,
    rate,
    recent_metrics,
    start_tracking,
    summarise,
    table,
)
from run_data import read_metrics, wilson_interval
from run_folder import UsageError
from tasks import parse_task

WARMUP = [("alarm", True, False, 0), ("alarm", False, True, 0), ("maps", True, True, 1), ("maps", True, None, 2)]
FINAL = [("alarm", True, True, 0), ("alarm", False, False, 0), ("maps", True, True, 1), ("maps", False, None, 2)]


def test_an_unknown_verdict_is_counted_apart():
    found = rate(WARMUP)
    assert (found["success_rate"], found["n"], found["unjudged"]) == (2 / 3, 3, 1)
    assert found["ci95"][0] < 2 / 3 < found["ci95"][1]
    assert rate([("maps", True, None, 0)]) == {"success_rate": None, "ci95": None, "n": 0, "unjudged": 1}


def test_repeats_of_a_task_make_no_interval_smaller():
    again = [row for row in FINAL if row[2] is not None]
    once, twice = rate(again), rate(again * 2)
    assert once["ci95"] == list(wilson_interval(2, 3)) and (twice["n"], twice["ci95"]) == (6, once["ci95"])
    trained = [("maps", False, i % 3 > 0, -1) for i in range(6)]  # without numbers: all different
    assert rate(trained)["ci95"] == list(wilson_interval(4, 6))


def test_the_headline_is_greedy_and_families_count_both_modes():
    results = summarise(WARMUP, FINAL)
    assert results["warmup_success_rate"] == 0.5 and results["success_rate"] == 1.0 and results["n"] == 2
    assert results["sampled"]["final"]["success_rate"] == 0.0 and results["sampled"]["final"]["unjudged"] == 1
    families = results["families"]
    assert families["alarm"] == {"warmup": 0.5, "final": 0.5, "n": 2, "ci95": list(wilson_interval(1, 2))}
    assert families["maps"] == {"warmup": 1.0, "final": 1.0, "n": 1, "ci95": list(wilson_interval(1, 1))}


def tasks(*instructions: str) -> list:
    return [parse_task(text) for text in instructions]


def test_success_by_set_and_by_what_is_new():
    train = tasks("Set an alarm for 4pm", "Open the Camera app", "Go to ebay.com")
    test = tasks("Set an alarm for 5pm", "Go to reddit.com", "open the camera app", "Find pizza restaurants on Maps",
                 "Open the Camera")  # fmt: skip
    final = [(test[number].family, True, number != 3, number) for number in range(5)]
    final += [(row[0], False, False, row[3]) for row in final] + [("alarm", True, None, 0)]
    warmup = [("alarm", True, False, 0), ("web_open", True, True, -1)]  # of an older checkpoint: no number
    training = [("alarm", False, False, -1)] * 300 + [("alarm", False, True, -1)] * 64 + [("web_open", False, True, -1)]
    found = breakdown(warmup, final, training, train, test)
    general, web = found["sets"]["General"], found["sets"]["Web Shopping"]
    assert (general["warmup"]["success_rate"], general["final"]["success_rate"]) == (0.0, 0.75)
    assert web["final"]["success_rate"] == 1.0
    assert (general["train"]["success_rate"], general["train"]["n"]) == (0.5, 128) and web["train"]["n"] == 1
    played = [("alarm", True, i % 3 > 0, i) for i in range(150)] + [("web_open", True, False, 150)]  # greedily
    sets = breakdown(warmup, final, played, train, test)["sets"]
    assert (sets["General"]["train"]["success_rate"], sets["General"]["train"]["n"]) == (2 / 3, 150)  # all of them
    assert sets["Web Shopping"]["train"]["success_rate"] == 0.0 and sets["General"]["final"] == general["final"]
    assert {kind: (x["final"]["success_rate"], x["final"]["n"]) for kind, x in found["new"].items()} == {
        "seen": (1.0, 1), "instance": (1.0, 2), "template": (1.0, 1), "app": (0.0, 1)}  # fmt: skip
    assert found["new"]["instance"]["warmup"]["n"] == 1


def test_flips_are_counted_over_pairs_of_repeats():
    again = [("maps", True, not success, number) for _, greedy, success, number in FINAL if greedy]
    assert flips(FINAL) == {"share": None, "pairs": 0}
    assert flips([*FINAL, *again]) == {"share": 1.0, "pairs": 2}
    assert flips([*FINAL, *FINAL, *again]) == {"share": 4 / 7, "pairs": 7}  # 0, 1: 3 pairs each, 2 differ; sampled 0: 1


def test_G5_G6_the_card_says_how_the_numbers_came_about(tmp_path, monkeypatch):
    args, held_out = flags.Args(), tasks("Set an alarm for 5pm", "Go to reddit.com")
    policy = SimpleNamespace(codec=SimpleNamespace(max_action=64))
    (tmp_path / "policy.safetensors").write_bytes(b"weights")
    journal = tmp_path / "journal.sqlite"
    start = cards.at_start(tmp_path / "policy.safetensors", journal, tasks("Open the Camera app"), held_out)
    with monkeypatch.context() as later:  # resumed, with other code
        later.setattr(cards, "code_hash", lambda: "0123456789ab")
        two = cards.at_start(tmp_path / "another", journal, tasks("Open the Camera app"), held_out)
        assert two == start | {"code_sha256": f"{start['code_sha256']}, then 0123456789ab"}
    three = cards.at_start(tmp_path / "policy.safetensors", journal, tasks("Open the Camera app"), held_out)
    assert three == two  # each is named once
    same = tasks("Open the Camera app")
    for lists, flag in (((held_out, held_out), "--tasks"), ((same, held_out[:1]), "--eval-tasks")):
        with pytest.raises(UsageError, match=f"--resume: {flag} has other instructions than when the run began"):
            cards.at_start(tmp_path / "policy.safetensors", journal, *lists)
    monkeypatch.setattr(cards, "load", lambda: [9.0, 9.0, 9.0])  # the machine at the end

    def card(judge=None, train=("Open the Camera app",), start=start, **changes):
        for name, value in changes.items():
            setattr(args.tasks, name, value)
        return evaluation_card(args, judge or JudgeConfig(), tasks(*train), held_out, FINAL, policy, start)

    found = card()
    assert found["seeds"] == [1] and found["repeats"] == 1 and found["step_budget"] == [15, 20]
    assert found["judge"] == "rules" and found["judge_error"] == "0 by definition"
    assert found["decoding"]["max_tokens"] == 64 and found["train_success"].startswith("sampled, the last 128 training")
    hashes = [name for name in found if name.endswith("sha256")]
    assert len({found[name] for name in hashes}) == len(hashes) == 6
    assert all(len(found[name]) == 64 for name in hashes) and found["code_sha256"] == code_hash()
    assert found["policy_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert found["phones"] == {"kind": "simulated", "workers": 32, "dialogs": 0.8, "failed_loads": 0.3,
                               "slow_loads": 0.1, "latency_training": 0.7, "latency_evaluation": 0.2}  # fmt: skip
    assert found["budget"] == {"train_minutes": 10.0, "total_trajectories": 4000} and found["sync"] is False
    assert found["algorithm"]["algo"] == "aride" and found["algorithm"]["replay_capacity"] == 2000
    assert found["algorithm"]["max_staleness"] == 50 and found["algorithm"]["publish_every"] == 4
    assert found["versions"]["torch"] and f"{os.cpu_count()} CPUs" in found["machine"] and "GB" in found["machine"]
    assert found["load"] == {"start": start["load"], "end": [9.0, 9.0, 9.0]} and len(start["load"]) == 3
    model = JudgeConfig("openai", "m", "http://127.0.0.1:1")
    other = card(model, train=("Open the Clock app",), horizon=7, eval_train=3)
    assert {name for name in found if found[name] != other.get(name)} == {
        "judge", "judge_error", "judge_prompt_sha256", "train_sha256", "step_budget", "train_success"}  # fmt: skip
    assert other["judge_error"] is None and "the first 3 training tasks of each set" in other["train_success"]
    assert other["judge_error_command"] == "python evaluator.py --calibrate FOLDER --judge openai:m@http://127.0.0.1:1"
    later = card(start=start | {"code_sha256": "of then"})  # the files on the disk may have changed since
    assert later["code_sha256"] == "of then" != code_hash()
    args.phones.devices = ("R58M12ABC",)
    assert card()["phones"] == {"kind": "adb", "workers": 32, "reset": "home"}


def test_a_policys_hash_is_of_its_file_or_of_all_in_its_folder(tmp_path):
    for name, data in (("a.bin", b"1"), ("config.json", b"2")):
        (tmp_path / name).write_bytes(data)
    both = cards.files_hash(tmp_path)
    assert cards.files_hash(tmp_path / "a.bin") == hashlib.sha256(b"1").hexdigest()
    (tmp_path / "config.json").write_bytes(b"3")
    assert cards.files_hash(tmp_path) != both and cards.files_hash(tmp_path / "none") is None


def test_the_commit_is_told_with_whether_files_differ_from_it(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)

    def commit() -> str | None:
        cards.git_commit.cache_clear()
        return cards.git_commit()

    monkeypatch.setattr(cards, "ROOT", tmp_path)
    try:
        assert commit() is None  # a copy without git's folder
        git("init", "-q")
        (tmp_path / "a.py").write_text("1\n")
        git("add", "a.py")
        git("commit", "-qm", "one")
        assert len(clean := commit()) == 40
        (tmp_path / "a.py").write_text("2\n")
        assert commit() == f"{clean} + changes"
        monkeypatch.setenv("PATH", "")
        assert commit() is None
    finally:
        cards.git_commit.cache_clear()


def test_the_effective_share_of_the_replay():
    assert priority_ess([2.0] * 5) == pytest.approx(1.0) and priority_ess([3.0, 0.0, 0.0, 0.0]) == 0.25
    assert priority_ess([1.0, 2.0, 3.0]) == pytest.approx(36 / (3 * 14)) and priority_ess([]) is None


def rows(times: list[float]) -> list[dict]:
    same = {"return": 1.0, "length": 4, "invalid": 0.5, "seconds": 10.0, "policy_seconds": 1.0, "server_batch": 8.0}
    judged = [True, False, None]
    return [{"success": judged[i % 3], "lag": i, "oldest": 2 * i, "at": at, **same} for i, at in enumerate(times)]


def test_metrics_of_the_last_trajectories():
    found = recent_metrics(rows([100.0, 130.0, 150.0]), now=160.0, seconds=600.0)
    assert found["charts/success_rate"] == 0.5 and found["stats/policy_lag_max"] == 4
    assert found["stats/phone_idle"] == 0.1
    assert found["charts/trajectories_per_minute"] == 3


@pytest.mark.parametrize("times, seconds, expected", [
    ([159.5, 159.6, 159.9], 60.0, 3.0),  # the first ones: not three in half a second
    ([130.0 + 0.1 * i for i in range(300)], 600.0, 600.0),  # so many that the rows do not reach a minute back
    ([150.0 + i for i in range(10)], 10.0, 60.0),  # training is ten seconds old
    ([20.0, 30.0, 155.0], 600.0, 1.0),  # two of them long ago
])  # fmt: skip
def test_the_rate_is_that_of_the_last_minute(times, seconds, expected):
    found = recent_metrics(rows(times), now=160.0, seconds=seconds)
    assert found["charts/trajectories_per_minute"] == pytest.approx(expected, rel=0.01)


def test_metrics_file(tmp_path):
    for step in (1, 2):
        append_metrics(tmp_path / "metrics.csv", {"step": step, "trajectories": 5 * step, "losses/entropy": 0.25})
    text = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(text) == 3 and text[0].split(",") == ["step", "trajectories", *METRICS]
    assert read_metrics(tmp_path / "metrics.csv")[1] == {"step": 2, "trajectories": 10, "losses/entropy": 0.25}


def test_a_line_that_a_full_disk_tore_is_not_gone_on_with(tmp_path):
    path = tmp_path / "metrics.csv"
    for step in (1, 2):
        append_metrics(path, {"step": step, "wall_seconds": 30.0 * step})
    path.write_bytes(path.read_bytes()[: -len(METRICS) - 4])  # "2,6"
    append_metrics(path, {"step": 3, "wall_seconds": 90.0})
    assert read_metrics(path) == [{"step": 1, "wall_seconds": 30.0}, {"step": 3, "wall_seconds": 90.0}]
    path.write_bytes(b"step,wall_se")
    append_metrics(path, {"step": 4, "wall_seconds": 120.0})
    assert read_metrics(path) == [{"step": 4, "wall_seconds": 120.0}]


def test_G3_the_table_ends_with_the_result_and_says_where_to_look():
    results = summarise(WARMUP, FINAL) | {"trajectories": 12, "wall_seconds": 90.0}
    text = table(results, Path("runs/x"))
    (said,) = [line for line in text.splitlines() if line.startswith("Success on held-out tasks")]
    assert said == ("Success on held-out tasks 50% -> 100% (greedy, n 2, 0 without a verdict) after 12 trajectories "
                    "and 1.5 minutes on simulated phones.")
    assert "runs/x/report.html" in text.replace("\\", "/") and "runs/x/results.json" in text.replace("\\", "/")
    doubtful = summarise([], [*FINAL, ("maps", True, None, 3)]) | {"wall_seconds": 90.0, "evaluated": "runs/x"}
    assert "100% (greedy, n 2, 1 without a verdict): runs/x" in table(doubtful | {"trajectories": 0}, Path("runs/y"))


@dataclass
class Args:
    out: Path = Path("runs")


def test_e9_g9_tracking_without_a_key_is_offline_and_asks_nothing(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = start_tracking(Args(), tmp_path)
    run.log({"charts/success_rate": 0.5}, step=1)
    run.finish()
    assert run.offline and list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_e9_tracking_goes_offline_when_the_server_does_not_answer(tmp_path, monkeypatch, capsys):
    modes = []

    class Error(Exception):
        pass

    def init(*, mode, **options):
        modes.append(mode)
        if mode == "online":
            raise Error("no answer\nand more")
        return mode

    wandb = SimpleNamespace(Error=Error, init=init, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert start_tracking(Args(), tmp_path) == "offline" and modes == ["online", "offline"]
    assert "no answer: logging offline" in capsys.readouterr().out


def test_A4_what_phones_could_not_type_is_told_once_and_counted_and_so_are_restarts(tmp_path, capsys):
    from args import Args
    from policy import AutoUIPolicy
    from replay import Trajectory
    from run_distrl import Experiment
    from tasks import parse_task

    task, info = parse_task("Open the clock"), {"worker": 0, "reason": "", "serial": "R58M12", "seconds": 2.0}
    info |= {"policy_seconds": 1.0, "server_batch": 1.0}
    policy = AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64)
    args = Args()
    args.phones.devices = ("R58M12",)
    run = Experiment(args, tmp_path, [task], [task], policy)
    run.pool = SimpleNamespace(error=None, alive=1, restarts=3, phone_restarts=2, server_restarts=1, env_steps=5,
                               last_error="")
    for split, more in (("train", {}), ("warmup", {"unsupported_text": 2}), ("train", {"unsupported_text": 1})):
        played = Trajectory(
            task.instruction, task.family, ["p0", "p1"], np.zeros((2, 1408), np.float16), ["a"], token_ids=[[1]],
            logprobs=[[-1.0]], rewards=[0.0], invalid=[False], policy_version=[0], terminated=True, truncated=False,
            success=False, info=info | more,
        )  # fmt: skip
        run.on_trajectory(SimpleNamespace(split=split, task=task, greedy=True, number=0), played.to_bytes())
    run.journal.close()
    while run.receive():
        pass
    run.log(1.0, 10.0)
    out = capsys.readouterr().out
    assert out.count("warning: no ADBKeyBoard on R58M12") == 1
    assert "1 policy server replaced, 3 workers replaced, 2 phones restarted)" in out
    (row,) = read_metrics(tmp_path / "metrics.csv")
    assert (row["stats/unsupported_text"], row["stats/phone_restarts"], row["stats/worker_restarts"]) == (3, 2, 3)
    run.save()
    again = Experiment(args, tmp_path, [task], [task], policy)
    again.load()
    again.pool = SimpleNamespace(restarts=1, phone_restarts=0, server_restarts=0, env_steps=7)
    assert again.unsupported == 3
    assert again.counts() == {"env_steps": 12, "restarts": 4, "phone_restarts": 2, "server_restarts": 1}
