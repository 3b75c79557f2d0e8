"""Headless Chromium over its debugging pipe (the DevTools protocol): a page as a person's browser shows it.

    with Chromium() as browser:
        browser.open("file:///.../report.html"); browser.js("document.title"); browser.click("#next"); browser.problems

    python tests/chromium.py runs/NAME/report.html docs/report.png      # the page as a picture
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --remote-debugging-pipe --hide-scrollbars --disable-extensions""".split()


class Chromium:
    """One browser with one page. `problems`: what its console has said as a warning or an error, and what was thrown.
    `requests`: what it asked the network for."""

    def __init__(self, seconds: float = 30.0):
        self.seconds, self.number, self.buffer, self.session = seconds, 0, b"", None
        self.problems: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> "Chromium":
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        (theirs_in, self.out), (self.read_end, theirs_out) = os.pipe(), os.pipe()
        # The pipe is file descriptors 3 and 4 of the browser.
        script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", PATH, *FLAGS, f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.session = None
            self.call("Browser.close")
        except (OSError, TimeoutError):
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.read_end)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **params) -> dict:
        """One command of the protocol and its answer. Events that come meanwhile are taken note of."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        return self._until(lambda said: said.get("id") == self.number)

    def _until(self, wanted) -> dict:
        deadline = time.monotonic() + self.seconds
        while True:
            said, found, rest = self.buffer.partition(b"\0")
            if not found:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                    raise TimeoutError(f"Chromium said nothing within {self.seconds:g} s")
                data = os.read(self.read_end, 1 << 20)
                if not data:
                    raise OSError("Chromium has ended")
                self.buffer += data
                continue
            self.buffer = rest
            message = json.loads(said)
            self._note(message)
            if wanted(message):
                if "error" in message:
                    raise RuntimeError(message["error"])
                return message.get("result", message)

    def _note(self, message: dict) -> None:
        params, method = message.get("params", {}), message.get("method")
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Loads a page to its end."""
        self.call("Page.navigate", url=url)
        self._until(lambda said: said.get("method") == "Page.loadEventFired")

    def js(self, code: str):
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression in the page is true."""
        deadline = time.monotonic() + self.seconds
        while not self.js(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of what the selector finds."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{where}.scrollIntoView({{block: 'center'}})")
        box = self.js(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({where}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The page as a PNG, all of its height."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))


if __name__ == "__main__":
    with Chromium() as chromium:
        chromium.size(1200, 900)
        chromium.open(Path(sys.argv[1]).resolve().as_uri())
        chromium.screenshot(Path(sys.argv[2]))
        sys.exit("\n".join(chromium.problems) or None)
