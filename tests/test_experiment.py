"""An experiment without its phones: what a resumed run goes on from, alarms, room on the disk."""

import dataclasses
import errno
import json
import math
import multiprocessing
import os
import shutil
from multiprocessing import heap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from test_learner import TAPS, play, small
from torch import nn

import evaluation
import lora
import pools
import run_distrl
import run_folder
from args import Args, JudgeArgs
from journal import Journal, JournalError
from policy import AutoUIPolicy
from recorded import pace_of
from run_distrl import Experiment, main
from run_folder import RunStopped, UsageError, check_room, load_checkpoint, make_folder, save_checkpoint
from shared_weights import SharedWeights
from tasks import generate_tasks
from tokenizer import Codec
from worker import Episode

TASKS = generate_tasks("train", 20, seed=0)


def begin(folder, policy) -> Experiment:
    """A run in `folder`, which is made when it is not there."""
    args = Args()
    args.algorithm = dataclasses.replace(args.algorithm, learning_starts=1, critic_warmup=0, batch_trajectories=2)
    if not folder.exists():
        make_folder(folder.parent, folder.name, args)
    return Experiment(args, folder, TASKS, TASKS, policy)


def journal(run: Experiment, trajectories) -> None:
    for trajectory in trajectories:
        info = {"worker": 0, "reason": "", "serial": "x"}
        run.on_trajectory(Episode(TASKS[0], seed=0), dataclasses.replace(trajectory, info=info).to_bytes())
    run.journal.close()
    run.journal = None


def adapters_by_hand(policy, rank, seed=0) -> None:
    """What `add_lora` makes, as far as a resumed run looks at it; needs no peft."""
    for _, m in lora._adapted(policy.network):
        for name, columns, rows in (("lora_A", m.in_features, rank), ("lora_B", rank, m.out_features)):
            setattr(m, name, nn.ModuleDict({"default": nn.Linear(columns, rows, bias=False)}))
    for name, p in policy.network.named_parameters():
        p.requires_grad_("lora_" in name)


# ---- weights without the rest


def test_F8_weights_alone_load_for_evaluation_and_a_resumed_run_warns_and_starts_its_optimiser_anew(tmp_path, capsys):
    folder, policy, trained = tmp_path / "run", small(), small(seed=1)
    first = begin(folder, policy)
    journal(first, (play(policy, True, actions=TAPS[:1], seed=i) for i in range(3)))
    for _ in range(3):
        first.receive()
        first.learner.update()
    trained.save(folder / "policy.safetensors")  # and no checkpoint: they were deleted
    assert first.learner.policy_optimizer.state_dict()["state"]

    resumed = begin(folder, small())
    resumed.load()
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert f"no checkpoint in {folder}: going on from the weights of {folder}/policy.safetensors" in said
    assert "optimisers, critics, priorities and random streams start anew" in said
    assert all(torch.equal(a, b) for a, b in zip(resumed.policy.parameters(), trained.parameters(), strict=True))
    assert not resumed.learner.policy_optimizer.state_dict()["state"] and resumed.learner.updates == 0
    assert (resumed.trajectories, len(resumed.learner.replay), resumed.version) == (3, 3, 1)
    resumed.learner.update()  # and it learns

    loaded = AutoUIPolicy.load(folder / "policy.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), trained.parameters(), strict=True))


def test_F8_a_whole_checkpoint_goes_before_weights_alone_and_nothing_is_warned_of(tmp_path, capsys):
    folder, policy = tmp_path / "run", small()
    first = begin(folder, policy)
    journal(first, [play(policy, True, actions=TAPS[:1])])
    first.receive()
    first.learner.update()
    first.save()
    small(seed=1).save(folder / "policy.safetensors")
    resumed = begin(folder, small(seed=2))
    resumed.load()
    assert "warning" not in capsys.readouterr().out
    assert all(torch.equal(a, b) for a, b in zip(resumed.policy.parameters(), policy.parameters(), strict=True))
    assert resumed.learner.policy_optimizer.state_dict()["state"] and resumed.learner.updates == 1


def test_a_killed_run_gets_no_training_time_back(tmp_path):
    """Its trajectories since the checkpoint are kept, so are the minutes in which they were played."""
    first = begin(tmp_path / "run", small())
    first.train_seconds = 60.0
    first.save()
    first.train_seconds = 105.3
    first.record({})  # the last row of metrics.csv before the kill
    resumed = begin(tmp_path / "run", small())
    resumed.load()
    assert resumed.train_seconds == 105.3 and resumed.wall_seconds == pytest.approx(45.3, abs=3)
    resumed.train_seconds = 110.0
    resumed.save()
    again = begin(tmp_path / "run", small())
    again.load()
    assert again.train_seconds == 110.0
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    small().save(tmp_path / "run" / "policy.safetensors")
    again = begin(tmp_path / "run", small())
    again.load()
    assert again.train_seconds == 105.3


def test_results_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """reproduce/run.py takes a run with this file for done."""
    run = begin(tmp_path / "run", small())
    run.pool = SimpleNamespace(error=None)
    monkeypatch.setattr(evaluation, "results", lambda run: {"n": 1})

    def half(path, content, **_):
        with path.open("w") as file:
            file.write("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space"):
        run.finish()
    assert not (run.folder / "results.json").exists()


def test_F8_weights_of_another_size_are_refused(tmp_path):
    begin(tmp_path / "run", small())
    small(d_model=48).save(tmp_path / "run" / "policy.safetensors")
    resumed = begin(tmp_path / "run", small())
    with pytest.raises(ValueError, match=r"another policy size.*, 48\) in the file, .*, 32\) here"):
        resumed.load()
    adapters_by_hand(resumed.policy, 2)
    with pytest.raises(ValueError, match="policy.safetensors has the adapters added in: start a new run with it"):
        resumed.load()


# ---- what --policy names must be what it was


@pytest.fixture
def with_adapters(tmp_path, monkeypatch):
    """A run with LoRA that has saved a checkpoint; base.safetensors is its --policy."""
    monkeypatch.setattr("lora.add_lora", adapters_by_hand)
    monkeypatch.setattr("policy_check.find_spec", lambda name: True)
    small().save(tmp_path / "base.safetensors")
    args = Args()
    args.run.runs_dir, args.policy.policy, args.policy.lora = tmp_path, tmp_path / "base.safetensors", 2
    folder = make_folder(tmp_path, "run", args)
    policy, _ = run_distrl.load_policy(args)
    Experiment(args, folder, TASKS, TASKS, policy).save()
    with Journal(folder / "journal.sqlite") as journal:
        del journal.meta["start"]  # these are not the flags' tasks
    return folder


def resume(folder, monkeypatch) -> int:
    """`python run_distrl.py --resume FOLDER`; it must not get as far as the phones."""
    monkeypatch.setattr("pools.phone_source", lambda *a, **k: pytest.fail("phones are started"))
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--resume", str(folder)])
    return main()


def test_a_journal_without_the_right_to_write_is_refused_before_anything_starts(with_adapters, monkeypatch, capsys):
    journal, access = with_adapters / "journal.sqlite", os.access
    journal.touch()
    monkeypatch.setattr(os, "access", lambda path, *rest: Path(path) != journal and access(path, *rest))
    assert resume(with_adapters, monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"error: {journal}: no right to write there: make it writable")


def test_a_checkpoint_that_lacks_a_part_is_named_with_what_to_do(with_adapters, monkeypatch, capsys):
    save_checkpoint(with_adapters, 99, {"schedule": {}})
    assert resume(with_adapters, monkeypatch) == 2
    words = "the newest checkpoint does not fit ('learner'): remove it to go on without it\n"
    assert capsys.readouterr().err == f"error: --resume {with_adapters}: {words}"


def test_a_base_of_adapters_that_has_changed_is_one_error_before_anything_starts(with_adapters, monkeypatch, capsys):
    changed = small()
    with torch.no_grad():
        changed.network.gate_dense.bias[0] += 1e-3
        changed.network.shared.weight[5] *= 1.01
    changed.save(with_adapters.parent / "base.safetensors")
    assert resume(with_adapters, monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --resume {with_adapters}: --policy has other weights than the run began with (2 ")
    assert "network.shared.weight" in said and "network.gate_dense.bias" in said and said.count("\n") == 1
    assert "put the old file back" in said


def test_an_unchanged_base_goes_on(with_adapters, monkeypatch):
    with pytest.raises(pytest.fail.Exception, match="phones are started"):
        resume(with_adapters, monkeypatch)


def test_another_tokenizer_is_refused_whether_weights_are_published_or_not():
    from learner import Learner

    policy, other = small(), small()
    saved = json.loads(other.codec.to_json())
    words = saved["tokenizer"]["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    other.codec = Codec.from_json(json.dumps(saved))
    one, two = (Learner(p, Args().algorithm) for p in (policy, other))
    assert policy.codec.prompt_ids("a") != other.codec.prompt_ids("a")
    with pytest.raises(ValueError, match="another tokenizer than the run began with: put the old one back"):
        two.load_state_dict(one.state_dict(), None)
    older = {name: part for name, part in one.state_dict().items() if name != "vocabulary"}
    two.load_state_dict(older, None)  # of a version that did not save it


# ---- waiting


def test_a_signal_in_the_midst_of_looking_whether_to_stop_is_not_lost(tmp_path):
    run = begin(tmp_path / "run", small())

    class Signalled(type(run)):
        @property
        def paused(self):  # the handler runs here
            self.stopping = True

    run.__dict__.pop("paused")
    run.__class__ = Signalled
    assert run.judge_pauses() and run.stopping


def test_sync_hands_out_nothing_before_its_first_round(tmp_path):
    """The collector may ask at any moment, also just before the round begins."""
    run = begin(tmp_path / "run", small())
    run.args.run.sync, run.args.phones.num_workers, asked = True, 2, []
    nobody = SimpleNamespace(publish=lambda arrays, version: None)
    run.pool = SimpleNamespace(env_steps=0, error=None, weights=nobody)

    def asks() -> bool:  # where the main thread looks whether it is to stop
        asked.append(run.schedule.next())
        return len(asked) > 3

    run.judge_pauses = asks
    run.train()
    assert [episode and episode.number for episode in asked] == [None, 1, 2, None]


def test_E17_a_run_to_which_nothing_comes_stops_with_the_last_error(tmp_path):
    run = begin(tmp_path / "run", small())
    assert run.silence == 600
    slow = Args(judge=JudgeArgs("gemini", judge_rpm=5.0, judge_votes=3))  # 32 workers wait for 6 calls each
    assert pools.silence(slow) > 60 * 32 * 6 / 5 > pools.silence(Args(judge=JudgeArgs("gemini")))
    run.pool = SimpleNamespace(env_steps=0, error=None, last_error="worker 0 on worker_ip1:5555: no answer")
    run.silence = 0.1
    for step in range(5):  # slow, but they play
        run.pool.env_steps = step
        assert not run.receive(timeout=0.06)
    assert not run.receive(timeout=0.03)
    with pytest.raises(RunStopped, match="no step and no trajectory .*; the last error: worker 0 on worker_ip1:5555"):
        run.receive(timeout=0.06)
    journal(run, [play(run.policy, True, actions=TAPS[:1])])
    assert run.receive(timeout=0.06) and run.waited == 0


# ---- alarms


def test_C16_alarms_are_said_when_they_begin(tmp_path, capsys):
    run = begin(tmp_path / "run", small())
    run.pool = SimpleNamespace(alive=2, env_steps=9, restarts=0, phone_restarts=0, server_restarts=0, last_error="")
    row = {"success": False, "return": 0.0, "length": 3, "lag": 1.0, "oldest": 1, "at": 0.0,
           "seconds": 1.0, "policy_seconds": 0.5, "server_batch": 1.0}  # fmt: skip

    def warnings(invalid: float, ratio: float) -> list[str]:
        run.recent.clear()
        run.recent.append(row | {"invalid": invalid})
        run.update_metrics = {"stats/rho_max": ratio}
        run.log(1.0, 60.0)
        return [line for line in capsys.readouterr().out.splitlines() if "warning" in line]

    bound = math.exp(20.0)
    assert warnings(0.5, 3e6) == []
    (said,) = warnings(0.62, 3e6)
    assert "62% of the last actions could not be parsed" in said and "lower --learning-rate" in said
    assert warnings(0.9, 3e6) == []  # it was said
    (said,) = warnings(0.9, bound)
    assert "an importance ratio reached its bound" in said
    assert warnings(0.1, 1.0) == [] and len(warnings(0.9, bound)) == 2  # over, then there again
    run.learner.skipped = 1
    (said,) = warnings(0.9, bound)
    assert "1 updates left out, as something was not finite" in said
    run.learner.skipped = 2
    assert len(warnings(0.9, bound)) == 1


def test_what_befalls_workers_and_phones_is_told_with_its_remedy_once_while_the_run_goes_on(tmp_path, capsys):
    run = begin(tmp_path / "run", small())
    run.pool = SimpleNamespace(alive=1, env_steps=9, restarts=0, phone_restarts=0, server_restarts=0, last_error="")

    def told(error: str, workers: int, phones: int) -> list[str]:
        run.pool.last_error, run.pool.restarts, run.pool.phone_restarts = error, workers, phones
        run.log(1.0, 60.0)
        return capsys.readouterr().out.splitlines()

    first = "adb: device 'R58M12' is unauthorized:\naccept the prompt on its screen"
    assert told("", 0, 0) == ["  1 phones alive, waiting for the first trajectories"]
    assert told(first, 1, 0)[0] == f"  warning: {first}".replace("\n", " ")  # before there is any trajectory
    assert len(told(first, 1, 0)) == 1
    run.recent.append({"success": True, "return": 1.0, "length": 3, "lag": 1.0, "oldest": 1, "at": 0.0, "invalid": 0.0,
                       "seconds": 1.0, "policy_seconds": 0.05, "server_batch": 1.0})  # fmt: skip
    (line,) = told(first, 1, 0)
    assert "phones 1/32 (waiting 5%, 1 worker replaced) |" in line
    second = "worker 1 on R58M13: exit code 3, after its screen is locked: unlock it"
    warning, line = told(second, 3, 2)
    assert warning == f"  warning: {second}"
    assert "(waiting 5%, 3 workers replaced, 2 phones restarted) |" in line
    assert len(told(first, 3, 2)) == 1  # again, but it is known


def test_E7_too_little_shared_memory_is_warned_of_with_the_bytes_and_does_not_matter(tmp_path, monkeypatch, capsys):
    usage, run = pools.shutil.disk_usage("/"), begin(tmp_path / "run", small())
    monkeypatch.setattr(pools.shutil, "disk_usage", lambda path: usage._replace(free=64_000_000))  # Docker's
    pools.warn_of_little_shared_memory(8 * 1_000_000)
    assert capsys.readouterr().out == ""
    pools.warn_of_little_shared_memory(8 * 250_000_000)
    (line,) = capsys.readouterr().out.splitlines()
    assert "take 2,000,000,000 bytes of /dev/shm, which has 64,000,000 free" in line and "--shm-size" in line
    monkeypatch.setattr(pools.shutil, "disk_usage", lambda path: usage._replace(free=0))
    pools.make_pool(run, SimpleNamespace(addresses=[], restart=None), tmp_path, None)
    assert f"take {4 * 2 * sum(p.numel() for p in run.policy.parameters()):,} bytes" in capsys.readouterr().out
    monkeypatch.setattr(heap.Arena, "_dir_candidates", [])  # as if it had not even room for these
    size = 1_000_000
    weights, array = SharedWeights(multiprocessing.get_context("forkserver"), size), np.zeros(size, np.float32)
    weights.publish([np.ones(size, np.float32)])
    assert weights.read([array]) == 1 and array.all()


# ---- room on the disk


def test_a_disk_that_is_full_at_any_write_is_one_error_and_what_to_do(tmp_path, monkeypatch, capsys):
    def failing(error):
        def run_in(*_):
            raise error

        monkeypatch.setattr(run_distrl, "run_in", run_in)
        monkeypatch.setattr("sys.argv", ["run_distrl.py", "--runs-dir", str(tmp_path)])
        return main()

    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert failing(OSError(number, os.strerror(number), "metrics.csv")) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"error: [Errno {number}] ") and "metrics.csv': make room\nGo on with: " in said
        assert said.count("\n") == 2
    assert failing(JournalError("journal x: disk I/O error")) == 1
    assert capsys.readouterr().err.startswith("error: journal x: disk I/O error\nGo on with: ")
    assert failing(BrokenPipeError(errno.EPIPE, "Broken pipe")) == 1  # `python run_distrl.py | head`
    assert capsys.readouterr().err.startswith("error: [Errno 32] Broken pipe\nGo on with: ")
    with pytest.raises(PermissionError):  # not of the disk: it is ours to mend
        failing(PermissionError(errno.EACCES, "Permission denied"))


def test_a_policy_that_cannot_be_written_is_one_error(tmp_path, monkeypatch):
    run = begin(tmp_path / "run", small())
    run.pool = SimpleNamespace(error=None)

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("policy.save_file", full)
    with pytest.raises(RunStopped, match="policy.safetensors cannot be written .*No space left.*is the disk full"):
        run.finish()


def test_D19_a_checkpoint_grows_by_24_bytes_an_update_and_reads_older_paces(tmp_path):
    run = begin(tmp_path / "run", small())
    run.pace = [(n, n // 4, n / 7) for n in range(2000)]
    smaller = run.save().stat().st_size
    run.pace += run.pace * 9
    assert run.save().stat().st_size - smaller == pytest.approx(24 * 18_000, rel=0.01)
    state = load_checkpoint(run.folder)
    assert pace_of(state) == run.pace
    resumed = begin(tmp_path / "run", small())
    resumed.load()
    assert resumed.pace == run.pace
    state["counters"]["pace"] = state.pop("pace").tolist()
    assert pace_of(state) == run.pace and pace_of({"counters": {}}) == []


def test_a_checkpoint_is_as_large_as_was_said(tmp_path):
    policy = small()
    run = begin(tmp_path / "run", policy)
    said = run.learner.checkpoint_bytes()
    journal(run, [play(policy, True, actions=TAPS[:1])])
    run.receive()
    run.learner.update()  # from now on there are moments to save
    assert run.save().stat().st_size == pytest.approx(said, rel=0.1)
    assert run.learner.checkpoint_bytes() == said


def test_a_disk_without_room_for_the_checkpoints_is_one_error_with_the_bytes(tmp_path, monkeypatch, capsys):
    usage = run_folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda path: usage._replace(free=510_000_000))
    small().save(tmp_path / "p.safetensors")
    size = begin(tmp_path / "other", small()).learner.checkpoint_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("pools.phone_source", lambda *a, **k: pytest.fail("phones are started"))
        patch.setattr("run_folder.KEPT", 40)  # as for a policy twenty times as large
        flags = ["--policy", str(tmp_path / "p.safetensors"), "--runs-dir", str(tmp_path / "runs")]
        patch.setattr("sys.argv", ["run_distrl.py", *flags])
        assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --runs-dir ") and said.count("\n") == 1
    assert f"checkpoints of {size:,} bytes" in said and "510,000,000 are free" in said
    assert not list((tmp_path / "runs").iterdir())


def test_room_for_a_base_size_network_counts_what_a_resumed_run_has_already(tmp_path, monkeypatch):
    usage = run_folder.shutil.disk_usage(tmp_path)
    free = 9_499_999_999
    monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda path: usage._replace(free=free))
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"9,500,000,000 bytes are needed \(3 checkpoints of 3,000,000,000 bytes"):
        check_room(run, 3_000_000_000)
    (run / "journal.sqlite").write_bytes(b"x" * 1000)  # makes no room
    with pytest.raises(UsageError, match="9,500,000,000 bytes are needed"):
        check_room(run, 3_000_000_000)
    (run / "checkpoints" / "1.pt").write_bytes(b"x")
    check_room(run, 3_000_000_000)
