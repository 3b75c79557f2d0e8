"""Three ways to ask a vision-language model about screens, with one answer and one error for all.

    ask = make_client("openai", "qwen2.5-vl", "http://127.0.0.1:8000")
    ask("What is this?", [png], timeout=30, temperature=0).text

`gemini` speaks through google-generativeai, or google-genai when that is the one installed; `openai` is plain HTTP to
any server of chat completions (vLLM, Ollama, llama.cpp). None of them retries: `JudgeError.kind` says what the caller
may do. Keys come from the environment (GEMINI_API_KEY or GOOGLE_API_KEY; OPENAI_API_KEY), live in closures only, and
are cut out of every error text.

Departs from the authors' code: its SDK retries by itself for minutes, and each error becomes a failure of the policy.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_MODELS = {"gemini": "gemini-2.5-flash", "openai": ""}
KEYS = {"gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "openai": ("OPENAI_API_KEY",)}
OPENAI_URL = "https://api.openai.com/v1"
MAX_OUTPUT_TOKENS = 4096    # models that think spend most of it before their answer's first word
LONGEST_ANSWER = 4_000_000  # bytes of a reply that are read


@dataclass(frozen=True)
class Answer:
    """The answer's own text, without the model's thoughts; tokens as the server counts them (0: it does not say)."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class JudgeError(Exception):
    """No usable answer. kind:

    "limit" (asked too often), "unavailable" (down, overloaded), "silent" (no answer in time): may be asked again;
    "empty", "cut": an answer without text, or one that was cut off; "blocked": held back by a filter;
    "refused": the request is not accepted; "quota" (of the day), "key", "model": no call of this run can succeed.
    `delay`: seconds that the server asks to wait, None when it does not say.
    """

    def __init__(self, kind: str, message: str, delay: float | None = None, tokens: tuple[int, int] = (0, 0)):
        super().__init__(message)
        self.kind, self.delay, self.tokens = kind, delay, tokens


class MissingClient(Exception):
    """The judge cannot be built: no key, no SDK, no model; the text says what to do."""


SECRET = re.compile(r"(^|_)(API_?KEYS?|KEY|(TOKEN|SECRET|PASSWORD|CREDENTIAL)S?)(?![A-Z])", re.IGNORECASE)


def without_keys() -> dict[str, str]:
    """This process's environment for a program that judges nothing: without what is named like a key or a password."""
    return {name: value for name, value in os.environ.items() if not SECRET.search(name)}


def url_problem(url: str) -> str:
    """What is wrong with a server's address, to be put behind the name of its flag; "" when nothing is."""
    if re.search("[@?#]", url):  # it is saved in config.json and shown
        return ": no password, key or query in it: keys come from the environment"
    try:
        parts = urllib.parse.urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:  # half a bracket; a port that is no number
        whole = False
    return "" if whole or not url else f" {' '.join(url.split())}: an address like http://127.0.0.1:8000 is needed"


Ask = Callable[..., Answer]  # (prompt, pngs, *, timeout: seconds, temperature) -> Answer; raises JudgeError


def make_client(kind: str, model: str, url: str = "") -> Ask:
    """A function that asks once. Raises MissingClient."""
    name, key = next(((name, os.environ[name].strip()) for name in KEYS[kind] if os.environ.get(name)), ("", ""))
    if not key.isascii() or not key.isprintable():  # it cannot be sent; the error of a library would show it
        raise MissingClient(f"--judge {kind}: {name} holds a character that no key has: copy it again")
    if not key and not url:
        raise MissingClient(f"--judge {kind}: set {' or '.join(KEYS[kind])} in the environment, or name --judge-url")
    if not model:
        raise MissingClient(f"--judge {kind}: name the server's vision-language model with --judge-model")
    if kind == "openai":
        return _guarded(_openai(model, url or OPENAI_URL, key), key)
    for build in (_generativeai, _genai):
        try:
            return _guarded(build(model, url, key or "none"), key)
        except ImportError:
            continue
    raise MissingClient("--judge gemini: neither google-generativeai nor google-genai is installed: "
                        "python -m pip install google-genai")


def refusal(status: int, body: str, retry_after: str | None = None) -> JudgeError:
    """The error that an HTTP answer other than 200 stands for."""
    text, delay = f"HTTP {status}: {_message(body)}", None
    for pattern in (r'"retryDelay"\s*:\s*"([\d.]+)s"', r"retry in ([\d.]+) ?s"):
        if found := re.search(pattern, body):
            delay = float(found[1])
            break
    if delay is None and retry_after and re.fullmatch(r"\d+(\.\d+)?", retry_after.strip()):
        delay = float(retry_after)
    if status == 429:
        spent = re.search(r"per[-_ ]?day|insufficient_quota", body, re.IGNORECASE)
        return JudgeError("quota" if spent else "limit", text, None if spent else delay)
    if status == 402:  # the account is empty
        return JudgeError("quota", text)
    if status == 404:
        return JudgeError("model", text)
    if status in (401, 403) or status == 400 and re.search(r"api[ _]key", body, re.IGNORECASE):
        return JudgeError("key", text)
    if status in (408, 425) or status >= 500:
        return JudgeError("unavailable", text, delay)
    return JudgeError("refused", text)


def _message(body: str) -> str:
    """The server's own words in an error's body."""
    try:
        error = json.loads(body)
        error = error[0] if isinstance(error, list) else error
        error = error.get("error", error)
        body = error if isinstance(error, str) else error["message"]
    except (ValueError, LookupError, AttributeError, TypeError):
        pass
    return " ".join(str(body).split()) or "without a word"


def _guarded(ask: Ask, key: str) -> Ask:
    """Whatever goes wrong is a JudgeError, and no text of it holds the key."""

    def clean(text: str) -> str:
        return text.replace(key, "***") if key else text

    @functools.wraps(ask)
    def guarded(prompt: str, pngs: list[bytes], *, timeout: float, temperature: float) -> Answer:
        try:
            answer = ask(prompt, pngs, timeout=timeout, temperature=temperature)
            return Answer(clean(answer.text), answer.input_tokens, answer.output_tokens)
        except JudgeError as error:
            text = clean(str(error))[:320]  # cut here alone: half a key is not recognised
            raise JudgeError(error.kind, text, error.delay, error.tokens) from None
        except Exception as error:  # an SDK may raise anything; a judge's fault must not end a worker
            what = "no answer in time" if _is_timeout(error) else "no answer"
            text = clean(f"{what} ({type(error).__name__}: {' '.join(str(error).split())})")[:320]
            raise JudgeError("silent" if _is_timeout(error) else "unavailable", text) from None

    return guarded


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or "Timeout" in type(error).__name__ or isinstance(
        getattr(error, "reason", None), TimeoutError)


# ---------------------------------------------------------------------- Gemini


def _generativeai(model: str, url: str, key: str) -> Ask:
    from gemini_sdk import generativeai as sdk

    if sdk is None:
        raise ImportError("google-generativeai is not installed")
    from google.api_core.exceptions import GoogleAPICallError

    sdk.configure(api_key=key, transport="rest", client_options={"api_endpoint": url} if url else None)
    gemini = sdk.GenerativeModel(model)

    def ask(prompt, pngs, *, timeout, temperature):
        content = [prompt, *({"mime_type": "image/png", "data": png} for png in pngs)]
        settings = {"temperature": temperature, "max_output_tokens": MAX_OUTPUT_TOKENS}
        try:
            # Left alone this SDK retries a 503 in silence for minutes.
            answer = gemini.generate_content(content, generation_config=settings,
                                             request_options={"timeout": timeout, "retry": None})
        except GoogleAPICallError as error:
            response = error.response
            text, headers = (response.text, response.headers) if response is not None else (str(error), {})
            raise refusal(int(error.code or 500), text, headers.get("Retry-After")) from None
        return _gemini_answer(answer)

    return ask


def _genai(model: str, url: str, key: str) -> Ask:
    from google import genai
    from google.genai import errors

    options = {"api_version": "v1beta"} | ({"base_url": url} if url else {})
    client = genai.Client(api_key=key, vertexai=False, http_options=options)

    def ask(prompt, pngs, *, timeout, temperature):
        parts = [{"text": prompt}, *({"inline_data": {"mime_type": "image/png", "data": png}} for png in pngs)]
        config = {"temperature": temperature, "max_output_tokens": MAX_OUTPUT_TOKENS,
                  "http_options": {"timeout": int(1000 * timeout)}}
        try:
            answer = client.models.generate_content(model=model, contents=[{"role": "user", "parts": parts}],
                                                    config=config)
        except errors.APIError as error:
            body = error.details if isinstance(error.details, str) else json.dumps(error.details, default=str)
            headers = getattr(error.response, "headers", None) or {}
            raise refusal(int(error.code or 500), body, headers.get("Retry-After")) from None
        return _gemini_answer(answer)

    return ask


def _gemini_answer(answer) -> Answer:
    """The answer of either SDK: their objects have the same names."""
    usage = answer.usage_metadata
    sent = getattr(usage, "prompt_token_count", 0) or 0
    total, written = (getattr(usage, name, 0) or 0 for name in ("total_token_count", "candidates_token_count"))
    written = max(written, total - sent)  # thoughts are paid for as well
    tokens = (sent, written)
    if reason := _name(getattr(answer.prompt_feedback, "block_reason", None)):
        raise JudgeError("blocked", f"the prompt was blocked: {reason}", tokens=tokens)
    if not answer.candidates:
        raise JudgeError("empty", "no candidates in the answer", tokens=tokens)
    candidate = answer.candidates[0]
    parts = getattr(candidate.content, "parts", None) or []
    text = "".join(part.text or "" for part in parts if not getattr(part, "thought", False))
    return _checked(text, _name(candidate.finish_reason), tokens)


def _name(value) -> str:
    """An enum's name, "" for none and "unspecified"."""
    name = getattr(value, "name", None) or str(value or "")
    return "" if name.endswith("_UNSPECIFIED") or name == "0" else name


def _checked(text: str, finish: str, tokens: tuple[int, int]) -> Answer:
    """An answer that ended as it should."""
    if finish.upper() in ("MAX_TOKENS", "LENGTH"):
        raise JudgeError("cut", f"the answer was cut off ({finish}): {text!r}", tokens=tokens)
    if finish.upper() not in ("", "STOP"):
        raise JudgeError("blocked", f"the answer was held back: {finish}", tokens=tokens)
    if not text.strip():
        raise JudgeError("empty", "the answer holds no text", tokens=tokens)
    return Answer(text, *tokens)


# ---------------------------------------------------------------------- OpenAI-compatible servers


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the key to another host."""

    def redirect_request(self, *_):
        return None


def _openai(model: str, url: str, key: str) -> Ask:
    url = url.rstrip("/")
    if not urllib.parse.urlsplit(url).path:
        url += "/v1"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    opener = urllib.request.build_opener(_NoRedirect)
    names = {"max_tokens": "max_tokens", "temperature": "temperature"}  # as this server has them; "": not at all

    def ask(prompt, pngs, *, timeout, temperature):
        images = [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs]
        content = [{"type": "text", "text": prompt},
                   *({"type": "image_url", "image_url": {"url": image}} for image in images)]
        options = {names["temperature"]: temperature, names["max_tokens"]: MAX_OUTPUT_TOKENS}
        body = {"model": model, "messages": [{"role": "user", "content": content}]}
        body |= {name: value for name, value in options.items() if name}
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
        try:
            with opener.open(request, timeout=timeout) as response:
                data = response.read(LONGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(LONGEST_ANSWER).decode("utf-8", "replace")
            if error.code == 400 and _renamed(names, text):
                return ask(prompt, pngs, timeout=timeout, temperature=temperature)
            raise refusal(error.code, text, error.headers.get("Retry-After")) from None
        except http.client.IncompleteRead:
            raise JudgeError("cut", "the connection ended within the answer") from None
        return _openai_answer(data)

    return ask


def _renamed(names: dict[str, str], refused: str) -> bool:
    """Does a refusal say that an option is called otherwise, or not taken? Newer models of OpenAI have it so."""
    other = {"max_tokens": "max_completion_tokens", "temperature": ""}
    unfit = [name for name in other
             if names[name] == name and re.search(rf"unsupported.*\W{name}\W", refused, re.I | re.S)]  # fmt: skip
    names.update((name, other[name]) for name in unfit)
    return bool(unfit)


def _openai_answer(data: bytes) -> Answer:
    try:
        answer = json.loads(data)
        usage = answer.get("usage") or {}
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        if not answer["choices"]:
            raise JudgeError("empty", "no choices in the answer", tokens=tokens)
        choice = answer["choices"][0]
        message = choice["message"]
        text, refused, finish = message.get("content") or "", message.get("refusal"), choice.get("finish_reason") or ""
        if isinstance(text, list):
            text = "".join(part.get("text") or "" for part in text if part.get("type") == "text")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error} in {data!r}"
        raise JudgeError("empty", f"not an answer of chat completions ({what})") from None
    if refused:
        raise JudgeError("blocked", f"the model refused: {refused}", tokens=tokens)
    if "<think>" in text or "</think>" in text:  # local servers leave the model's thoughts in its answer
        if "</think>" not in text:
            raise JudgeError("cut", "the answer ends within the model's thoughts", tokens=tokens)
        text = text.rsplit("</think>", 1)[1]
    return _checked(text, finish, tokens)
