"""A run's folder: what is refused, what survives a kill or a full disk."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import run_folder
from args import AlgorithmArgs, Args, JudgeArgs, PhoneArgs, PolicyArgs, RunArgs, TaskArgs, resumed
from run_distrl import main
from run_folder import (
    RunStopped,
    UsageError,
    check_room,
    go_on,
    held,
    load_checkpoint,
    make_folder,
    read_args,
    save_checkpoint,
)


def test_arguments_come_back_as_they_were(tmp_path):
    args = Args(policy=PolicyArgs(policy=tmp_path / "p"), algorithm=AlgorithmArgs(priority_weights=(1.0, 2.0, 3.0)),
                tasks=TaskArgs(horizon=4))  # fmt: skip
    one, two = make_folder(tmp_path, "x", args), make_folder(tmp_path, "x", args)  # in the same second
    assert (one.name, two.name) == ("x", "x-2")
    args.run.runs_dir = args.run.runs_dir.absolute()
    assert read_args(one, Args) == read_args(two, Args) == args


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"run": {"colour": 3}}'])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match="not a run's folder .*: give the one that holds its config.json$"):
        read_args(tmp_path, Args)


def test_a_full_disk_is_noticed_before_the_start(tmp_path, monkeypatch):
    usage = run_folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    with pytest.raises(UsageError, match=r"only 3 MB free, a run needs 500 MB"):
        make_folder(tmp_path / "runs", "x", Args())
    assert not list((tmp_path / "runs").iterdir())


def test_no_right_to_write_is_one_error(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(UsageError, match=r"--runs-dir .*: cannot write there \(Permission denied\): name another"):
            make_folder(tmp_path / "runs", "x", Args())
    run = make_folder(tmp_path, "x", Args())
    (run / "journal.sqlite").touch()
    check_room(run, 0)
    for path in (run, run / "journal.sqlite"):
        monkeypatch.setattr(os, "access", lambda path, mode, mine=path: (path, mode) != (mine, os.W_OK))
        with pytest.raises(UsageError, match=f"^{re.escape(str(path))}: no right to write there: make it writable"):
            check_room(run, 0)


def test_a_command_to_go_on_with_can_be_pasted():
    assert go_on(Args(), Path("/my runs/a")) == "Go on with: python run_distrl.py --resume '/my runs/a'"
    ended = go_on(Args(run=RunArgs(eval=Path("p q.safetensors"))), Path("/b"))
    assert ended.endswith("run_distrl.py --eval 'p q.safetensors'")


# ---- what --resume may not change


def resume(run, monkeypatch, capsys, *flags) -> str:
    """What `python run_distrl.py --resume RUN` says when it refuses to."""
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--resume", str(run), *flags])
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize("calls", ["5", "-1"])
def test_a_wrong_budget_leaves_the_run_as_it_was(tmp_path, monkeypatch, capsys, calls):
    run = make_folder(tmp_path, "x", Args())  # the rules are its judge
    before = (run / "config.json").read_bytes()
    said = resume(run, monkeypatch, capsys, "--max-judge-calls", calls)
    assert re.match("error: --max-judge-calls.*(leave it out|at least 0)", said)
    assert (run / "config.json").read_bytes() == before


def test_a_larger_budget_is_written_or_refused_in_one_line(tmp_path, monkeypatch, capsys):
    run = make_folder(tmp_path, "x", Args(judge=JudgeArgs("openai", "m", max_judge_calls=3)))
    args = resumed(Args(run=RunArgs(resume=run), judge=JudgeArgs(max_judge_calls=9)))
    assert args.judge == read_args(run, Args).judge == JudgeArgs("openai", "m", max_judge_calls=9)
    assert args.run.resume == run and read_args(run, Args).run.resume is None

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    said = resume(run, monkeypatch, capsys, "--max-judge-calls", "10")
    assert f"--resume {run}: cannot write there (Permission denied): make it writable" in said
    assert read_args(run, Args).judge.max_judge_calls == 9


def test_an_evaluation_is_not_resumed(tmp_path, monkeypatch, capsys):
    run = make_folder(tmp_path, "eval__x", Args(run=RunArgs(eval=tmp_path / "p.safetensors")))
    said = resume(run, monkeypatch, capsys)
    assert f"an evaluation is not resumed: begin it again with --eval {tmp_path}/p.safetensors" in said
    args = resumed(Args(run=RunArgs(resume=run), phones=PhoneArgs(check=True)))  # to be looked at, it may be named
    assert args.phones.check and args.run.resume == run


def test_what_torch_says_is_one_line(monkeypatch, capsys):
    def refuse(_):
        raise UsageError("--policy x: Error(s) in loading:\n\tMissing key(s): a")

    monkeypatch.setattr("run_distrl.parse", refuse)
    assert main() == 2
    assert capsys.readouterr().err == "error: --policy x: Error(s) in loading: Missing key(s): a\n"


# ---- checkpoints


def test_only_the_newest_two_checkpoints_are_kept(tmp_path):
    assert load_checkpoint(tmp_path) is None
    for number in (5, 40, 300):
        save_checkpoint(tmp_path, number, {"number": number, "weights": torch.ones(3)})
    assert load_checkpoint(tmp_path)["number"] == 300
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["00000040.pt", "00000300.pt"]


def test_a_write_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    """Case E13, and a disk that fills up."""
    save_checkpoint(tmp_path, 1, {"number": 1})

    def full(state, file):
        file.write(b"half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunStopped, match="No space left on device.*is the disk full"):
        save_checkpoint(tmp_path, 2, {"number": 2})
    assert os.listdir(tmp_path / "checkpoints") == ["00000001.pt"] and load_checkpoint(tmp_path) == {"number": 1}

    def stuck(path, missing_ok=False):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", stuck)
    with pytest.raises(RunStopped, match="No space left on device"):  # not what came of it
        save_checkpoint(tmp_path, 2, {"number": 2})


def test_E13_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, capsys):
    save_checkpoint(tmp_path, 1, {"number": 1})
    newest = save_checkpoint(tmp_path, 2, {"number": 2, "weights": torch.ones(10_000)})
    newest.write_bytes(newest.read_bytes()[:5000])
    assert load_checkpoint(tmp_path) == {"number": 1}
    assert "00000002.pt cannot be read" in (said := capsys.readouterr().out) and "00000001.pt" in said


def test_a_damaged_checkpoint_is_named(tmp_path):
    save_checkpoint(tmp_path, 1, {"number": 1}).write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(UsageError, match="00000001.pt cannot be read"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("flags", [
    "--num-workers 0", "--num-workers -3", "--eval-episodes 0", "--dialogs 1.5", "--latency -1", "--latency nan",
    "--gamma 1.01", "--replay-capacity 10", "--batch-trajectories 0", "--publish-every 0", "--total-trajectories -1",
    "--seed -1", "--adb-port 99999", "--adb-port -1", "--priority-alpha 2", "--priority-weights 1 1 -1",
])  # fmt: skip
def test_numbers_out_of_range_are_named(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run_distrl.py", *flags.split(), "--runs-dir", str(tmp_path)])
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {flags.split()[0]} ") and said.endswith("is needed\n") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


HOLDS = """
import sys, run_folder
with run_folder.held(run_folder.Path(sys.argv[1])):
    print(flush=True)
    input()
"""


def test_a_run_in_which_another_process_is_at_work_is_not_resumed_until_that_ends(tmp_path, monkeypatch, capsys):
    folder = make_folder(tmp_path, "x", Args())
    other = subprocess.Popen([sys.executable, "-c", HOLDS, folder], cwd=Path(run_folder.__file__).parent,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    other.stdout.readline()
    before = contents(folder)
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--resume", str(folder)])
    assert main() == 2
    said = capsys.readouterr().err
    assert said == f"error: --resume {folder}: another process is at work in it: wait, or stop it\n"
    assert contents(folder) == before
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with held(folder):
        pass
