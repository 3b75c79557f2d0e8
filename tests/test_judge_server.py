"""Every failure of a judge's server, in the wire format of both Gemini SDKs and of OpenAI chat completions."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import judge_clients
from evaluator import JudgeConfig, VisionJudge, check, encode_screen
from judge_clients import JudgeError, MissingClient, make_client
from sim.judge_server import JudgeServer

ROOT = Path(__file__).resolve().parent.parent
SECRET = "sk-secret-0123456789abcdef"
IMAGE = np.zeros((40, 30, 3), np.uint8)
PNG = encode_screen(IMAGE)
TASK = types.SimpleNamespace(instruction="Open the clock", family="open_app")
SUCCESS = "The clock is open.\nStatus: success"


def importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


WIRES = [
    pytest.param("generativeai", marks=pytest.mark.skipif(not importable("google.generativeai"), reason="not there")),
    pytest.param("genai", marks=pytest.mark.skipif(not importable("google.genai"), reason="google-genai is not there")),
    "openai",
]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    for name in ("GOOGLE_API_KEY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def client(wire: str, url: str):
    build = getattr(judge_clients, f"_{wire}")
    return judge_clients._guarded(build("some-model", url, SECRET), SECRET)


def ask(wire: str, entry: str, timeout: float = 5.0, **options):
    with JudgeServer([entry], **options) as server:
        return client(wire, server.url)("What is this?", [PNG, PNG], timeout=timeout, temperature=0.0)


@pytest.mark.parametrize("wire", WIRES)
def test_prompt_screens_key_and_tokens_arrive(wire):
    with JudgeServer([SUCCESS]) as server:
        answer = client(wire, server.url)("What is this?", [PNG, PNG], timeout=5.0, temperature=0.0)
        (request,) = server.requests
    assert answer.text == SUCCESS and answer.input_tokens == 700 and answer.output_tokens == 30
    assert request.model == "some-model" and request.prompt == "What is this?" and request.images == [PNG, PNG]
    assert SECRET in (request.headers.get("x-goog-api-key"), request.headers.get("authorization", "")[7:])
    assert SECRET not in request.path


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("entry", "kind"), [
    ("limit", "limit"), ("quota", "quota"), ("503", "unavailable"), ("404", "model"), ("401", "key"),
    ("empty", "empty"), ("no_parts", "empty"), ("safety", "blocked"), ("blocked", "blocked"), ("cut", "cut"),
])  # fmt: skip
def test_B2_each_failure_is_one_error_of_its_kind(wire, entry, kind):
    with pytest.raises(JudgeError) as error:
        ask(wire, entry, delay=44.0)
    assert error.value.kind == kind, error.value
    assert error.value.delay == (44.0 if entry == "limit" else None)
    assert SECRET not in str(error.value) + repr(error.value)
    paid = entry in ("empty", "no_parts", "safety", "blocked", "cut")
    assert error.value.tokens == ((700, 30) if paid else (0, 0))


@pytest.mark.parametrize("wire", WIRES)
def test_garbage_is_an_error_too(wire):
    with pytest.raises(JudgeError) as error:
        ask(wire, "garbage")
    assert error.value.kind in ("empty", "unavailable")


@pytest.mark.parametrize("wire", WIRES)
def test_only_the_answers_own_text_counts(wire):
    if wire == "generativeai":
        pytest.skip("this SDK has no field for thoughts, and asks for none")
    assert ask(wire, "thoughts").text.strip() == "It is not done.\nStatus: failure"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("entry", ["silent", "slow"])
def test_B7_silence_ends_at_the_timeout_and_the_heart_beats_meanwhile(wire, entry):
    beats = []
    with JudgeServer([entry]) as server:
        config = JudgeConfig("openai", "some-model", server.url, timeout=0.3)
        judge = VisionJudge(config, ask=client(wire, server.url), sleep=lambda _: None,
                            heartbeat=lambda: beats.append(1))
        began = time.monotonic()
        verdict = judge.judge(TASK, (), [PNG])
        seconds = time.monotonic() - began
        assert len(server.requests) == 2  # asked again once
    assert verdict.success is None and verdict.reason.startswith(("silent", "unavailable"))
    assert 0.5 < seconds < 10 and len(beats) >= 2


@pytest.mark.parametrize("wire", WIRES)
def test_B7_another_judge_gets_its_verdict_while_the_first_is_silent(wire, tmp_path):
    """Two workers share a run's ledger. The server of the first one is silent until the other one has its verdict."""
    asked, judged = threading.Event(), threading.Event()

    def silent(_) -> str:
        asked.set()
        judged.wait(60)
        return SUCCESS

    def judge(server: JudgeServer) -> VisionJudge:
        config = JudgeConfig("openai", "some-model", server.url, timeout=30.0, ledger=str(tmp_path / "judge.sqlite"))
        return VisionJudge(config, ask=client(wire, server.url), sleep=lambda _: None)

    failure = "It is not.\nStatus: failure"
    with JudgeServer(silent) as quiet, JudgeServer([failure]) as prompt, ThreadPoolExecutor() as pool:
        first = pool.submit(judge(quiet).judge, TASK, (), [PNG])
        assert asked.wait(10)
        other = judge(prompt).judge(TASK, (), [PNG])
        judged.set()
        assert other.success is False and first.result().success is True
        assert len(quiet.requests) == len(prompt.requests) == 1  # the first one never gave up


@pytest.mark.parametrize("wire", WIRES)
def test_nobody_there_is_unavailable(wire):
    with JudgeServer([SUCCESS]) as server:
        url = server.url
    with pytest.raises(JudgeError) as error:
        client(wire, url)("?", [PNG], timeout=2.0, temperature=0.0)
    assert error.value.kind == "unavailable"


@pytest.mark.parametrize("wire", WIRES)
def test_a_503_and_a_429_are_asked_again_and_then_judged(wire):
    with JudgeServer(["503", "limit", "empty", SUCCESS]) as server:
        judge = VisionJudge(JudgeConfig("openai", "some-model"), ask=client(wire, server.url), sleep=lambda _: None)
        assert judge.judge(TASK, (), [PNG]).success is None  # "empty" was its last try: the third
        assert judge.judge(TASK, (), [PNG]).success is True
        assert len(server.requests) == 4
        outcomes = judge.ledger.summary()["outcomes"]
    assert outcomes == {"unavailable": 1, "limit": 1, "empty": 1, "answered": 1}


def test_options_that_a_newer_model_has_otherwise_are_left_to_it():
    with JudgeServer(["newer"]) as server:
        ask_it = client("openai", server.url)
        for calls in (3, 4):  # it is remembered
            assert ask_it("?", [PNG], timeout=5.0, temperature=0.0).text == "Status: success"
            assert len(server.requests) == calls


def test_redirects_do_not_carry_the_key_away():
    assert judge_clients.refusal(302, "").kind == "refused"
    assert judge_clients._NoRedirect().redirect_request() is None


def test_urls_with_and_without_a_path():
    for path in ("", "/", "/v1", "/v1/"):
        with JudgeServer([SUCCESS]) as server:
            make_client("openai", "m", server.url + path)("?", [], timeout=5.0, temperature=0.0)
            assert server.requests[0].path == "/v1/chat/completions"


def test_B16_a_key_with_a_line_end_is_taken_without_and_one_that_cannot_be_sent_is_not_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\r\n")  # of a file from Windows
    with JudgeServer([SUCCESS]) as server:
        make_client("openai", "m", server.url)("?", [], timeout=5.0, temperature=0.0)
        assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    for bad in (f"{SECRET}\x00x", f"{SECRET}\nx", f"{SECRET}é"):
        monkeypatch.setitem(os.environ, "OPENAI_API_KEY", bad.replace("\x00", "\x01"))
        with pytest.raises(MissingClient, match="OPENAI_API_KEY holds a character that no key has") as error:
            make_client("openai", "m")
        assert SECRET[:8] not in str(error.value)


def test_what_is_missing_is_named(monkeypatch):
    for name in ("GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(MissingClient, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        make_client("gemini", "m")
    with pytest.raises(MissingClient, match="OPENAI_API_KEY in the environment, or name --judge-url"):
        make_client("openai", "m")
    with pytest.raises(MissingClient, match="--judge-model"):
        make_client("openai", "", "http://127.0.0.1:1")


def test_gemini_takes_the_sdk_that_is_installed(monkeypatch):
    def missing(*_):
        raise ImportError("no such SDK")

    monkeypatch.setattr(judge_clients, "_generativeai", missing)
    monkeypatch.setattr(judge_clients, "_genai", lambda *_: lambda *_, **__: judge_clients.Answer("genai"))
    assert make_client("gemini", "m")("?", [], timeout=1, temperature=0).text == "genai"
    monkeypatch.setattr(judge_clients, "_genai", missing)
    with pytest.raises(MissingClient, match="pip install google-genai"):
        make_client("gemini", "m")


@pytest.mark.skipif(not importable("google.generativeai"), reason="not there")
def test_the_sdks_warnings_are_silenced():
    code = "from judge_clients import make_client; make_client('gemini', 'm', 'http://127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.skipif(not importable("google.genai"), reason="not there")
def test_the_newer_sdk_alone_is_enough_and_imported_by_what_the_fork_server_preloads():
    code = (
        "import sys\n"
        "sys.modules['google.generativeai'] = None  # as if it were not installed\n"
        "import gemini_sdk\n"
        "assert gemini_sdk.generativeai is None and 'google.genai' in sys.modules\n"
        "from judge_clients import make_client\n"
        "print(make_client('gemini', 'm', sys.argv[1])('?', [], timeout=5, temperature=0).text)\n"
    )
    with JudgeServer([SUCCESS]) as server:
        done = subprocess.run([sys.executable, "-c", code, server.url], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, SUCCESS, "")


def test_B8_the_start_check_asks_once():
    with JudgeServer(["404"]) as server:
        with pytest.raises(JudgeError, match="404") as error:
            check(JudgeConfig("openai", "retired", server.url))
        assert error.value.kind == "model" and len(server.requests) == 1
    with JudgeServer(["503"]) as server:
        with pytest.raises(JudgeError):
            check(JudgeConfig("openai", "m", server.url))
        assert len(server.requests) == 1
    with JudgeServer(["Status: success"]) as server:
        assert check(JudgeConfig("openai", "m", server.url)) == "Status: success"
        assert len(server.requests[0].images) == 1


@pytest.mark.parametrize("status", [401, 403, 400])
def test_B16_a_server_that_echoes_the_key_does_not_bring_it_into_a_text(status):
    def echo(*_, **__):
        raise judge_clients.refusal(status, f'{{"error": {{"message": "Incorrect API key provided: {SECRET}"}}}}')

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge = VisionJudge(JudgeConfig("openai", "m"), ask=judge_clients._guarded(echo, SECRET))
        verdict = judge.judge(TASK, (), [PNG])
    assert verdict.success is None and "Incorrect API key provided: ***" in verdict.reason
    everything = repr(verdict) + repr(judge.config) + repr(judge.ledger.stopped()) + repr(vars(judge))
    assert SECRET not in everything


def test_B16_a_key_is_taken_out_before_a_text_is_cut():
    for length in range(250, 330, 4):
        def refuse(*_, text="x" * length + SECRET, **__):
            raise judge_clients.refusal(400, f'{{"error": {{"message": "{text}"}}}}')

        with pytest.raises(JudgeError) as error:
            judge_clients._guarded(refuse, SECRET)("p", [], timeout=1, temperature=0)
        assert SECRET[:4] not in str(error.value) and len(str(error.value)) <= 320


@pytest.mark.parametrize(("status", "body"), [
    (402, "Insufficient Balance"), (429, "Rate limit exceeded: free-models-per-day"), (429, "GenerateRequestsPerDay"),
    (429, "insufficient_quota"),
])  # fmt: skip
def test_what_is_used_up_for_today_pauses_the_run(status, body):
    assert judge_clients.refusal(status, body).kind == "quota"
