"""The command line: short help, long help, flags that are hidden but taken."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import args as module
from run_folder import UsageError, held, make_folder

ROOT = Path(__file__).resolve().parent.parent


def options(capsys) -> set[str]:
    """The flags that a help text lists."""
    with pytest.raises(SystemExit):
        module.parse("about")
    return set(re.findall(r"^. (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))


def test_help_is_short_and_help_all_is_whole(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--help"])
    short = options(capsys)
    monkeypatch.setattr("sys.argv", ["run_distrl.py", module.SHOW_ALL])
    whole = options(capsys)
    flags = {f"--{name.replace('_', '-')}" for group in vars(module.Args()).values() for name in vars(group)}
    assert short < whole == flags and len(short) < 40 and {"--sync", "--screen-features"} <= short


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_test_finds_the_signals_as_the_one_before_did(monkeypatch, capsys, time):
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--help"])
    options(capsys)
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL  # `--help | head` is no error


def test_lines_that_are_left_out_are_counted(tmp_path, capsys):
    (tmp_path / "train.txt").write_text("Install the Yelp app\n")
    (tmp_path / "test.txt").write_text("Show my notifications\n\npaint the fence\nInstall Waze\nwash the car\n")
    args = module.Args()
    args.run.runs_dir, args.tasks.skip_unknown_tasks, args.tasks.eval_episodes = tmp_path, True, 2
    args.tasks.tasks, args.tasks.eval_tasks = tmp_path / "train.txt", tmp_path / "test.txt"
    assert [task.instruction for task in module.prepare(args)[1]] == ["Show my notifications", "Install Waze"]
    assert capsys.readouterr().out == f"{tmp_path}/test.txt: 2 of 5 lines left out, the first in line 3\n"


def test_a_flag_that_help_leaves_out_is_taken(monkeypatch):
    monkeypatch.setattr("sys.argv", "run_distrl.py --rho-clip 2 --priority-weights 1 2 3 --horizon 4".split())
    args = module.parse("about")
    assert (args.algorithm.rho_clip, args.algorithm.priority_weights, args.tasks.horizon) == (2.0, (1.0, 2.0, 3.0), 4)


@pytest.mark.parametrize(("words", "said"), [
    ("--seed 100000000000000000000", "--seed 100000000000000000000: 0 to 2147483647 is needed"),
    ("--priority-weights inf 1 1", "--priority-weights inf 1.0 1.0: at least 0 is needed"),
    ("--latency inf", "--latency inf: at least 0 is needed"),
    ("--learning-rate nan", "--learning-rate nan: at least 0 is needed"),
    ("--workers-per-node 3", "--workers-per-node 3: is for --ray-address"),
    ("--ray-address auto --adb-port 5038", "--adb-port 5038: each node of --ray-address takes a free one"),
    ("--exp-name a/b", "--exp-name 'a/b': a name of at most 100 characters without / is needed"),
    (f"--exp-name {'a' * 101}", f"--exp-name '{'a' * 101}': a name of"),
    ("--allow-offline", "--allow-offline: simulated phones have a network"),
    ("--serial --server-device cpu", "--server-device cpu: --serial has no policy server"),
    ("--rho-clip inf --train-minutes inf", ""),
])  # fmt: skip
def test_numbers_that_no_run_can_have_are_refused(monkeypatch, words, said):
    monkeypatch.setattr("sys.argv", ["run_distrl.py", *words.split()])
    if said:
        with pytest.raises(UsageError) as error:
            module.check_flags(module.parse("about"))
        assert str(error.value).startswith(said)
    else:
        module.check_flags(module.parse("about"))


def test_a_resumed_run_takes_more_judge_calls_or_no_limit_but_not_fewer(tmp_path, monkeypatch):
    args = module.Args()
    args.judge.judge, args.judge.max_judge_calls = "gemini", 50
    folder = make_folder(tmp_path, "run", args)

    def resumed(*words):
        monkeypatch.setattr("sys.argv", ["run_distrl.py", "--resume", str(folder), *words])
        return module.resumed(module.parse("about")).judge.max_judge_calls

    assert resumed() == resumed("--max-judge-calls", "50") == 50
    with pytest.raises(UsageError, match="--max-judge-calls 5: the run has 50: give more"):
        resumed("--max-judge-calls", "5")
    assert resumed("--max_judge_calls=80") == resumed() == 80
    assert resumed("--max-judge-calls", "0") == resumed() == 0
    with monkeypatch.context() as follower, held(folder):  # by torchrun's first process, which writes it
        follower.setenv("RANK", "1")
        assert resumed("--max-judge-calls", "90") == 90
    assert resumed() == 0
    with pytest.raises(UsageError, match="own flags: leave out --learning-rate --seed"):
        resumed("--learning_rate", "1", "--max-judge-calls", "0", "--seed=3")
    (folder / "results.json").write_text("{}")
    with pytest.raises(UsageError, match=f"the run is over: --eval {folder}"):
        resumed()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("program", ["run_distrl.py", "warm_start.py", "evaluator.py", "-m sim", "-m sim.judge_server"])
def test_help_may_be_cut(program, reads):
    """`--help | head -1`: who reads it leaves after its first piece; or before, where it has several."""
    if not reads and program not in ("run_distrl.py", "warm_start.py"):
        return
    command = [sys.executable, *program.split(), "--help"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if reads:
        assert os.read(process.stdout.fileno(), 1 << 16).startswith(b"usage: ")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)
