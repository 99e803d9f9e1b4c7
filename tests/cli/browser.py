"""browser.py - a headless Chromium, driven over a pipe with the DevTools protocol; nothing but the standard library.

SPDX-License-Identifier: MIT
"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find():
    """The path of one that starts, or None: on some systems the name belongs to a program that only tells how to install it."""
    names = [os.environ["BP_BROWSER"]] if os.environ.get("BP_BROWSER") else NAMES
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            said = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0 and b"." in said.stdout:
            return path
    return None


class Browser:
    def __init__(self, path):
        self.home = tempfile.TemporaryDirectory()
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads from 3 and writes to 4; first out of the way of these numbers.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]

        def in_child():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)
        self.process = subprocess.Popen(
            [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-extensions",
             f"--user-data-dir={self.home.name}", "--remote-debugging-pipe"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4),
            preexec_fn=in_child, env=dict(os.environ, HOME=self.home.name))
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self.read_fd, self.write_fd = ours_in, ours_out
        self.rest, self.last_id, self.events = b"", 0, []

    def close(self):
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        try:
            self.home.cleanup()
        except OSError:  # a late child still writes there
            pass

    def receive(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read_fd], [], [], max(0, deadline - time.monotonic()))
            chunk = os.read(self.read_fd, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser ended" if ready else "the browser does not answer")
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, timeout=60, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_fd, data):]
        deadline = time.monotonic() + timeout
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def wait(self, method, session, timeout=60):
        deadline = time.monotonic() + timeout
        while not any(e["method"] == method and e.get("sessionId") == session for e in self.events):
            answer = self.receive(deadline)
            if "method" in answer:
                self.events.append(answer)


class Page:
    """One tab with one file in it."""

    def __init__(self, browser, path, width=1280, dark=False, script=True, media=""):
        self.browser = browser
        self.url = "file://" + path
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        if not script:
            self.call("Emulation.setScriptExecutionDisabled", value=True)
        self.call("Page.navigate", url=self.url)
        browser.wait("Page.loadEventFired", self.session)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def run(self, code):
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"])
        return r["result"].get("value")

    def key(self, key, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **({"text": text} if text and kind == "keyDown" else {}))

    def seen(self, method):
        return [e["params"] for e in self.browser.events if e["method"] == method and e.get("sessionId") == self.session]

    def complaints(self):
        """What the console shows: errors, refused scripts and loads."""
        self.run("0")  # what came before this answer has come
        return [str(p) for m in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") for p in self.seen(m)]

    def requests(self):
        return [p["request"]["url"] for p in self.seen("Network.requestWillBeSent")]

    def screenshot(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])
