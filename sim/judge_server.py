"""A stand-in for Gemini and for OpenAI-compatible servers: the wire format of both, and all their ways to fail.

    with JudgeServer(["503", "limit", "Looks done.\\nStatus: success"]) as server:     # a script, one entry a call
        print(server.url)                                                              # http://127.0.0.1:PORT

    python -m sim.judge_server --adb-port 6037 --faults 0.3 --port 8000     # answers by rule, with faults in between

An entry of a script is the text of an answer, or one of `FAULTS`; its last entry goes on for ever. By rule: the server
looks for the simulated phone that shows the screen it was sent, reads its UI through adb and applies the task's rule to
that screen alone. A screen that no phone shows any more gets an answer without a status line.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What may go wrong part of the time, and what a test may script besides.
TEMPORARY = ("limit", "503", "safety", "empty", "cut", "blocked")
FAULTS = (*TEMPORARY, "quota", "404", "401", "silent", "garbage", "no_parts", "slow", "thoughts")
CODES = {"limit": 429, "quota": 429, "503": 503, "404": 404, "401": 401, "max_tokens": 400, "temperature": 400}
NEWER = {"max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                       "'max_completion_tokens' instead.",
         "temperature": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) "
                        "value is supported."}  # fmt: skip


@dataclass
class Request:
    """One call: `images` are PNGs, `headers` with small letters."""

    model: str
    prompt: str
    images: list[bytes]
    headers: dict[str, str]
    path: str


class JudgeServer:
    """Answers on a thread until closed. `answer`: a script, or a function of the Request that gives an entry.

    delay: seconds that the "limit" answer asks to wait. requests: all that came, oldest first.
    """

    def __init__(self, answer: Iterable[str] | Callable[[Request], str], port: int = 0, delay: float = 0.05):
        self.requests: list[Request] = []
        self.delay, self.released = delay, threading.Event()
        self._lock = threading.Lock()
        self._answer = answer if callable(answer) else self._scripted(list(answer))
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    owner.reply(self, body)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # whoever asked has gone

            def log_message(self, *_) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, name="judge server", daemon=True).start()

    def _scripted(self, script: list[str]) -> Callable[[Request], str]:
        def entry(_: Request) -> str:
            with self._lock:
                return script.pop(0) if len(script) > 1 else script[0]

        return entry

    def reply(self, handler: BaseHTTPRequestHandler, body: dict) -> None:
        request = read_request(handler.path, dict(handler.headers), body)
        with self._lock:
            self.requests.append(request)
        entry = self._answer(request)
        if entry == "newer":  # a model of OpenAI that has other options
            entry = next((name for name in NEWER if name in body), "Status: success")
        if entry in ("silent", "slow"):
            if entry == "slow":  # a byte now and then, for ever
                handler.send_response(200)
                handler.end_headers()
                while not self.released.wait(0.1):
                    handler.wfile.write(b" ")
            self.released.wait()
            handler.close_connection = True
            return
        openai = handler.path.endswith("/chat/completions")
        code = CODES.get(entry, 200)
        if code != 200:
            answer = openai_error(entry, code) if openai else gemini_error(entry, code, self.delay)
        else:
            answer = openai_answer(entry) if openai else gemini_answer(entry)
        data = b"<html>oops</html>" if entry == "garbage" else json.dumps(answer).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        if openai and entry == "limit":
            handler.send_header("Retry-After", str(self.delay))
        handler.end_headers()
        handler.wfile.write(data)

    def close(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> JudgeServer:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def read_request(path: str, headers: dict, body: dict) -> Request:
    """Either wire format."""
    if path.endswith("/chat/completions"):
        parts, model = body["messages"][-1]["content"], body["model"]
        images = [part["image_url"]["url"].split(",", 1)[1] for part in parts if part["type"] == "image_url"]
    else:
        parts = body["contents"][-1]["parts"]
        model = re.search(r"models/([^:/]+):", path)[1]
        found = [part.get("inlineData") or part.get("inline_data") for part in parts]
        images = [item["data"] for item in found if item]
    text = "\n".join(part["text"] for part in parts if "text" in part)
    pngs = [base64.b64decode(image.replace("-", "+").replace("_", "/")) for image in images]
    return Request(model, text, pngs, {name.lower(): value for name, value in headers.items()}, path)


def gemini_error(entry: str, code: int, delay: float) -> dict:
    """As the Gemini API words it."""
    status = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 404: "NOT_FOUND", 401: "UNAUTHENTICATED"}[code]
    message = {"quota": "You exceeded your current quota.", "limit": "You exceeded your current quota.",
               "404": "models/retired is not found for API version v1beta", "401": "API key not valid.",
               "503": "The model is overloaded. Please try again later."}[entry]  # fmt: skip
    details = []
    if code == 429:
        unit = "PerDay" if entry == "quota" else "PerMinute"
        quota = {"quotaMetric": "generate_content_free_tier_requests", "quotaValue": "10",
                 "quotaId": f"GenerateRequests{unit}PerProjectPerModel-FreeTier"}  # fmt: skip
        details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [quota]},
                   {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay:g}s"}]
    return {"error": {"code": code, "message": message, "status": status, "details": details}}


def gemini_answer(entry: str) -> dict:
    usage = {"promptTokenCount": 700, "candidatesTokenCount": 20, "totalTokenCount": 730}
    if entry == "blocked":
        return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage}
    if entry == "empty":
        return {"candidates": [], "usageMetadata": usage}
    finish = {"safety": "SAFETY", "cut": "MAX_TOKENS"}.get(entry, "STOP")
    parts = [] if entry in ("safety", "cut", "no_parts") else [{"text": entry}]
    if entry == "thoughts":
        parts = [{"text": "Status: success", "thought": True}, {"text": "It is not done.\nStatus: failure"}]
    candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": finish, "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage}


def openai_error(entry: str, code: int) -> dict:
    kind = {"quota": "insufficient_quota", "limit": "rate_limit_exceeded"}.get(entry, entry)
    return {"error": {"message": NEWER.get(entry, f"error {entry}"), "type": kind, "code": kind}}


def openai_answer(entry: str) -> dict:
    usage = {"prompt_tokens": 700, "completion_tokens": 30, "total_tokens": 730}
    if entry == "empty":
        return {"choices": [], "usage": usage}
    finish = {"safety": "content_filter", "cut": "length"}.get(entry, "stop")
    text = {"safety": "", "cut": "The screen shows", "no_parts": None, "blocked": None,
            "thoughts": "<think>\nStatus: success\n</think>\nIt is not done.\nStatus: failure"}.get(entry, entry)
    message = {"role": "assistant", "content": text} | ({"refusal": "I can't."} if entry == "blocked" else {})
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


class RuleAnswers:
    """The entry for a request: a fault part of the time, else what the task's rule says of the phone that shows it."""

    def __init__(self, host: str, adb_port: int, serials: list[str] | None = None, faults: float = 0.0, seed: int = 0):
        self._server, self._serials = (host, adb_port), serials
        self._faults, self._random = faults, random.Random(seed)
        self._phones: list | None = None
        self._showed: dict[str, object] = {}  # instruction -> the phone that showed its screen last
        self._lock = threading.Lock()  # one question at a time: the phones are few and quick

    def __call__(self, request: Request) -> str:
        from adb_phone import AndroidEnvError

        with self._lock:
            if self._random.random() < self._faults:
                return self._random.choice(TEMPORARY)
            try:
                return self._by_rule(request)
            except (AndroidEnvError, OSError) as error:
                return f"The screen cannot be compared: {error}"

    def _by_rule(self, request: Request) -> str:
        import numpy as np
        from PIL import Image

        from adb_phone import AdbPhone, AndroidEnvError, list_devices
        from tasks import UnknownInstruction, parse_task

        if self._phones is None:
            serials = self._serials or list(list_devices(*self._server))
            self._phones = [AdbPhone(serial, *self._server, timeout=2.0) for serial in serials]
        if request.prompt.endswith("Status: invalid"):
            return "It can have an effect.\nStatus: valid"
        told = re.search(r"^Task: (\".*\")$", request.prompt, re.MULTILINE)
        try:
            task = parse_task(json.loads(told[1])) if told else None
        except UnknownInstruction:
            task = None
        if task is None:
            return "Hello.\nStatus: success"  # the call that only asks whether somebody is here
        image = np.asarray(Image.open(io.BytesIO(request.images[-1])).convert("RGB"))
        likely = self._showed.get(task.instruction)
        for phone in sorted(self._phones, key=lambda phone: phone is not likely):
            try:
                if not np.array_equal(phone.screenshot(), image):
                    continue
                state = phone.ui()
                if np.array_equal(phone.screenshot(), image):  # else it changed while it was read
                    self._showed[task.instruction] = phone
                    done, reason = task.is_done([state])
                    return f"{' '.join(reason.split())}\nStatus: {'success' if done else 'failure'}"
            except AndroidEnvError:
                continue  # it is out of order; another may show it
        return "No phone shows this screen."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sim.judge_server", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="port to answer on; 0 takes a free one")
    parser.add_argument("--adb-port", type=int, required=True, help="of the adb server that knows the simulated phones")
    parser.add_argument("--faults", type=float, default=0.0, help="share of the calls that fail in one of their ways")
    parser.add_argument("--seed", type=int, default=0, help="which calls fail follows from it")
    args = parser.parse_args()
    with JudgeServer(RuleAnswers("127.0.0.1", args.adb_port, faults=args.faults, seed=args.seed), args.port) as server:
        print(f"{server.url}: give it to --judge-url; Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
