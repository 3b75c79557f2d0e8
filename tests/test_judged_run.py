"""Runs that a vision-language model judges: refusals at the start, budget, pause, resume, and where keys are not."""

import base64
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from test_run import Program

import evaluator
from adb_phone import AdbPhone
from android_env import Action, AndroidEnv, format_action
from args import Args, JudgeArgs, judge_config
from evaluator import JudgeConfig, RuleJudge, Verdict, VisionJudge
from journal import Journal
from judge_check import most_judge_calls, start_judge
from policy import AutoUIPolicy
from replay import Trajectory
from results import start_tracking
from run_folder import RunStopped, UsageError, make_folder
from sim.judge_server import JudgeServer, RuleAnswers
from tasks import generate_tasks, parse_task
from warm_start import as_action
from worker import Episode, Sample, rollout

SECRET = "sk-secret-0123456789abcdef"
TINY = """--serial --eval-episodes 2 --horizon 3 --total-trajectories 8 --learning-starts 4 --critic-warmup 2
    --batch-trajectories 2 --updates-per-trajectory 0.2 --eval-every 0""".split()
FAILURE = "It is not there.\nStatus: failure"


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def args_for(kind="openai", model="some-model", url="", **more) -> Args:
    args = Args()
    args.judge = JudgeArgs(judge=kind, judge_model=model, judge_url=url, **more)
    return args


# ---------------------------------------------------------------------- before anything starts


@pytest.mark.parametrize(("entry", "error", "message"), [
    ("404", UsageError, "--judge-model some-model: the judge does not know it"),
    ("401", UsageError, "--judge openai: the key in the environment is not accepted"),
    ("quota", RunStopped, "quota of the day is spent"),
])  # fmt: skip
def test_B8_what_cannot_work_is_refused_at_the_start_after_one_call(tmp_path, key, entry, error, message):
    with JudgeServer([entry]) as server:
        with pytest.raises(error, match=message) as raised:
            start_judge(args_for(url=server.url), tmp_path)
        assert len(server.requests) == 1 and SECRET not in str(raised.value)


def test_B4_an_outage_at_the_start_is_no_reason_to_stop(tmp_path, capsys):
    with JudgeServer(["503"]) as server:
        line = start_judge(args_for(url=server.url), tmp_path)
    assert "openai/some-model" in line and "HTTP 503" in capsys.readouterr().out
    with pytest.raises(UsageError, match="is the server running"):
        start_judge(args_for(url=server.url), tmp_path)


def test_G12_the_start_line_says_how_many_calls_to_expect(tmp_path):
    assert start_judge(Args(), tmp_path) == "judge: rules, no calls"
    args = args_for(judge_votes=3, judge_rpm=60.0, max_judge_calls=500)
    args.tasks.total_trajectories, args.tasks.eval_episodes, args.tasks.eval_every, args.tasks.horizon = 100, 8, 50, 4
    assert most_judge_calls(args) == ((100 + 32 + 16) * 5 * 3, 148)
    args.judge.validity_judge = True
    assert most_judge_calls(args)[0] == 148 * (5 + 4) * 3
    args.tasks.eval_repeats, args.tasks.eval_train = 3, 5  # repeats after training only; 5 training tasks of each set
    assert most_judge_calls(args)[1] == 100 + 2 * 8 * (1 + 3) + 2 * 5 + 16
    args.run.eval = tmp_path  # plays the last evaluation alone
    assert most_judge_calls(args)[1] == 2 * 8 * 3 + 2 * 5
    args.run.eval = None
    args.tasks.eval_repeats, args.tasks.eval_train = 1, 0
    with JudgeServer(["Status: success"]) as server:
        args.judge.judge_url = server.url
        line = start_judge(args, tmp_path)
    assert "3,996 calls for 148 trajectories, 1.1 hours at --judge-rpm 60, paused after 500" in line


@pytest.mark.parametrize(("judge", "message"), [
    (JudgeArgs(judge_votes=3), "--judge-votes: rules need no model"),
    (JudgeArgs(judge="openai", judge_url="127.0.0.1:8000"), "--judge-url 127.0.0.1:8000: an address like"),
    (JudgeArgs(judge="gemini", judge_url="https://x.test/?key=abc"), "no password, key or query"),
    (JudgeArgs(judge="gemini", judge_url="https://me:word@x.test"), "no password, key or query"),
    (JudgeArgs(judge="openai", judge_url="http://[::1"), r"--judge-url http://\[::1: an address like"),
    (JudgeArgs(judge="openai", judge_url="http://host:port"), "--judge-url http://host:port: an address like"),
    (JudgeArgs(judge="openai", judge_url="http://host:99999"), "--judge-url http://host:99999: an address like"),
    (JudgeArgs(judge="openai", judge_url="http://my host"), "--judge-url http://my host: an address like"),
    (JudgeArgs(judge="openai", judge_url="http://"), "--judge-url http://: an address like"),
])  # fmt: skip
def test_flags_that_do_not_go_together_are_refused(judge, message):
    with pytest.raises(UsageError, match=message):
        judge_config(judge)


# ---------------------------------------------------------------------- episodes


class Scripted:
    """An environment's phone without a phone: its screen is the number of inputs so far."""

    size, serial = (44, 48), "toy"

    def __init__(self):
        self.number = 0

    def shell(self, command, **_):
        if "input keyevent 3" in command:
            self.number = 0
        return ""

    def foreground(self):
        return "home", ".Home", ""

    def key(self, _):
        self.number += 1

    def ui(self):
        raise AssertionError("the screen is enough")

    def screenshot(self):
        return np.full((48, 44, 3), self.number, np.uint8)


HOME, DONE = format_action(Action("PRESS_HOME")), format_action(Action("STATUS_TASK_COMPLETE"))
CLOCK = parse_task("Open the clock")


class Strict:
    """B9: insists on one image and one text; success from the given number on."""

    def __init__(self, done_at):
        self.done_at = done_at

    def reset(self, task, observation):
        return self(task, observation)

    def __call__(self, task, observation):
        image = observation.image
        assert isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape == (48, 44, 3)
        assert isinstance(task.instruction, str)
        return Verdict(image[0, 0, 0] >= self.done_at, "by number")


def played(judge, *actions, validity=False, phone=None) -> Trajectory:
    left = list(actions)

    def act(prompt, feature, greedy):
        return Sample(left.pop(0), np.array([1]), np.array([-1.0]), 0)

    return rollout(AndroidEnv(phone or Scripted(), None, judge, horizon=3), Episode(CLOCK, 0), act, validity=validity)


def test_B9_B11_done_before_the_first_action_is_marked_and_in_no_rate():
    trajectory = played(Strict(0), HOME)
    assert trajectory.info["trivial_success"] is True and trajectory.success is None
    assert trajectory.info["reason"] == "done before the first action"
    assert "trivial_success" not in played(Strict(1), HOME).info and played(Strict(1), HOME).success is True


def test_B12_a_policy_that_says_it_is_done_earns_nothing_by_that():
    trajectory = played(Strict(99), DONE)
    assert trajectory.success is False and trajectory.terminated and trajectory.rewards.tolist() == [0.0]


def test_B4_an_episode_keeps_the_screens_that_could_not_be_judged():
    answers = [FAILURE, "cannot say", FAILURE, FAILURE]
    judge = VisionJudge(JudgeConfig("openai", "m"), sleep=lambda _: None,
                        ask=lambda *_, **__: evaluator_answer(answers.pop(0)))
    trajectory = played(judge, HOME, HOME, HOME)
    assert trajectory.success is None and trajectory.rewards.tolist() == [0.0, 0.0, 0.0]
    ((step, screens),) = Trajectory.from_bytes(trajectory.to_bytes()).info["unjudged"]
    assert step == 1 and len(screens) == 1 and base64.b64decode(screens[0]).startswith(b"\x89PNG")


def evaluator_answer(text):
    from judge_clients import Answer

    return Answer(text)


def test_B15_the_validity_judge_adds_to_the_parser():
    class Doubtful(Strict):
        def valid(self, task, image, actions, action):
            self.asked = [*getattr(self, "asked", []), (image[0, 0, 0], list(actions), action)]
            return 1.0 if image[0, 0, 0] == 1 else 0.0

    judge = Doubtful(99)
    trajectory = played(judge, HOME, "nonsense", HOME, validity=True)
    # Nonsense needs no judge; the others are judged on the screen that they were made for.
    assert judge.asked == [(0, [], HOME), (1, [HOME, "nonsense"], HOME)]
    assert trajectory.invalid.tolist() == [False, True, True] and trajectory.rewards.sum() == 0.0
    assert not played(Doubtful(99), HOME, HOME, HOME).invalid.any()  # only when it was asked for


def test_the_validity_judge_is_told_the_action_and_no_more():
    class Curious(Strict):
        def valid(self, task, image, actions, action):
            self.told = [*actions, action]
            return 0.0

    judge, planned = Curious(99), "Action Plan: [PRESS_HOME, " + "TYPE, " * 60 + "TYPE], " + HOME
    assert played(judge, planned, planned, planned, validity=True).actions == [planned] * 3
    assert judge.told == [HOME, HOME, HOME]


def test_A4_texts_that_a_phone_cannot_type_are_counted():
    class Latin(Scripted):
        def type_text(self, text):
            return text.isascii()

    texts = [format_action(Action("TYPE", text=text)) for text in ("naïve", "naive", "你好")]
    trajectory = played(Strict(99), *texts, phone=Latin())
    assert trajectory.info["unsupported_text"] == 2 and trajectory.success is False and not trajectory.invalid.any()
    assert "unsupported_text" not in played(Strict(99), HOME, HOME, HOME).info


def test_rewards_of_a_judge_that_fails_part_of_the_time_are_right_or_unknown(phones):
    """The scripted user on simulated phones; every verdict is the rule judge's or none."""
    from sim.demonstrator import next_action

    families = ("question", "news", "maps", "open_app", "alarm", "web_open", "app_settings", "places")
    tasks = [task for task in generate_tasks("tune", 54, seed=3) if task.family in families][:14]
    phone = AdbPhone(phones.serials[0], phones.host, phones.port)
    found = []
    with JudgeServer(RuleAnswers(phones.host, phones.port, [phones.serials[0]], faults=0.2, seed=4)) as server:
        vision = VisionJudge(JudgeConfig("openai", "m", server.url), sleep=lambda _: None)
        for number, task in enumerate(tasks):
            outcomes = []
            for judge in (vision, RuleJudge()):
                env = AndroidEnv(phone, None, judge)
                env.reset(seed=number, options={"task": task})
                reward, memory, ended = 0.0, {}, False
                while not ended:
                    action = format_action(as_action(next_action(task, phone.ui(), memory), phone.size))
                    _, gained, terminated, truncated, info = env.step(action)
                    reward, ended = reward + gained, terminated or truncated
                outcomes.append((info["success"], reward))
            found.append(outcomes)
    unknown = [by_model for by_model, _ in found if by_model[0] is None]
    assert all(by_model == by_rule or by_model == (None, 0.0) for by_model, by_rule in found), found
    assert len(unknown) < len(found) / 2 and vision.ledger.summary()["outcomes"].keys() > {"answered", "unavailable"}


# ---------------------------------------------------------------------- the whole program


def test_B8_B14_B16_a_run_with_a_budget_pauses_resumes_and_tells_no_key(tmp_path, key):
    policy = tmp_path / "policy.safetensors"
    AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64).save(policy)
    with JudgeServer(["404"]) as retired, JudgeServer([FAILURE]) as server:
        flags = [*TINY, "--policy", policy, "--runs-dir", tmp_path / "runs", "--judge", "openai"]
        refused = Program(*flags, "--judge-model", "retired", "--judge-url", retired.url)
        program = Program(*flags, "--judge-model", "m", "--judge-url", server.url, "--max-judge-calls", 6)
        code, out, err = refused.end(120)
        assert code == 2 and err.count("\n") == 1 and "--judge-model retired" in err and "workers ready" not in out
        assert len(retired.requests) == 1
        code, out, err = program.end(120)
        assert code == 0 and err == "" and "Paused: --max-judge-calls 6: all used up" in out, (code, out, err)
        assert len(server.requests) == 6
        (run,) = (tmp_path / "runs").iterdir()  # the refused one has left none
        assert list((run / "checkpoints").glob("*.pt"))
        with Journal(run / "journal.sqlite") as journal:
            before = {row.id: row.success for row in journal.rows()}
        code, out, err = Program("--resume", run, "--max-judge-calls", 5000).end(120)
        assert code == 0 and err == "" and "Success on held-out tasks" in out, (code, out, err)
        assert json.loads((run / "config.json").read_text())["judge"]["max_judge_calls"] == 5000  # the next one knows
    with Journal(run / "journal.sqlite") as journal:
        rows = {row.id: row for row in journal.rows()}
        assert {id: rows[id].success for id in before} == before
        assert all(row.reward == 0 and row.success in (False, None) for row in rows.values())
    results = json.loads((run / "results.json").read_text())
    assert results["judge"] == "openai/m" and results["judge_calls"]["calls"] == len(server.requests) > 6
    assert results["judge_calls"]["usd"] is None and results["date"] and "code" not in results["judge"]
    assert any(request.headers.get("authorization") == f"Bearer {SECRET}" for request in server.requests)
    for file in filter(lambda path: path.is_file(), run.rglob("*")):
        assert SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in out + err + repr(args_for())


def test_B16_config_json_args_and_what_the_tracker_is_given_hold_no_key(tmp_path, monkeypatch):
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    folder = make_folder(tmp_path, "run", args_for("gemini"))
    assert SECRET not in (folder / "config.json").read_text() + repr(args_for("gemini"))
    config = judge_config(args_for("gemini").judge, folder)
    assert SECRET not in repr(config) and SECRET not in repr(vars(evaluator.make_judge(config)))
    given = []
    wandb = SimpleNamespace(Error=OSError, Settings=dict, init=lambda **options: given.append(options))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    start_tracking(args_for("gemini"), folder)
    (options,) = given
    assert options["config"]["judge"]["judge"] == "gemini" and SECRET not in repr(options)
