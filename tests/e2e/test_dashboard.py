"""The dashboard in a real Chromium, driven by the DevTools protocol over a pipe (no other dependency)."""
import base64
import itertools
import json
import os
import shutil
import subprocess
import time

import pytest

from conftest import PATIENCE_S, filler

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script><b>bold</b>"


class Browser:
    """One page of a headless Chromium. Commands go to its descriptor 3, answers come from 4, each ended by a NUL."""

    def __init__(self, folder):
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        # The numbers that Chromium expects; a shell moves them, so that no code runs between fork and exec.
        command = ("exec \"$0\" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
                   " --disable-background-networking --remote-debugging-pipe"
                   f" --user-data-dir={folder} about:blank 3<&{to_read} 4>&{from_write}")
        self._log = open(folder / "chromium.log", "wb")
        self._process = subprocess.Popen(["bash", "-c", command, CHROMIUM], pass_fds=(to_read, from_write),
                                         stdout=self._log, stderr=self._log)
        os.close(to_read)
        os.close(from_write)
        self._numbers, self._buffer, self.events, self._session = itertools.count(1), b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 16)
            assert part, "Chromium went away"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression):
        deadline = time.monotonic() + min(PATIENCE_S, 120)
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never: {expression}: {self.value('document.body.innerText')}"
            time.sleep(0.1)

    def open(self, url, scheme="light", width=1400):
        self.events.clear()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && !!document.getElementById('state')")

    def key(self, key, code, text=None, modifiers=0):
        more = {"text": text, "unmodifiedText": text} if text else {}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      modifiers=modifiers, **(more if kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def complaints(self):
        """Exceptions, errors in the console, refusals by the policy."""
        found = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        found += [e["params"]["entry"] for e in self.events
                  if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error"]
        return found

    def requested(self):
        return {e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"}

    def screenshot(self, name):
        """Kept where KVLINK_SCREENSHOTS says, to be looked at."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        folder = os.environ.get("KVLINK_SCREENSHOTS")
        if folder:
            with open(os.path.join(folder, f"{name}.png"), "wb") as out:
                out.write(base64.b64decode(data))

    def close(self):
        os.close(self._to)
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._from)
        self._log.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM, "chromium is not installed: scripts/setup.sh --heavy"
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


def shown(browser, name):
    return browser.value(f"document.getElementById('{name}').innerText")


def say(browser, text):
    """By the keyboard alone; waits for the whole answer."""
    before = browser.value("document.querySelectorAll('.turn details').length")
    browser.value("document.getElementById('chat-text').focus()")
    browser.type(text)
    browser.key("Enter", 13, "\r")
    browser.wait(f"document.querySelectorAll('.turn details').length > {before}")


def test_the_page_shows_what_the_server_did(browser, server, chat):
    text = filler(120, "dashboard")
    for _ in range(2):
        chat(text, max_tokens=8)
    browser.open(server.url)
    browser.wait("document.getElementById('state').textContent === 'live'")
    browser.wait("document.querySelectorAll('#recent tbody tr').length >= 2")
    assert shown(browser, "model") == server.http.get("/v1/models").json()["data"][0]["id"]
    saved = server.metric("kvlink_reuse_tokens_total")
    share = f"{100 * saved / server.metric('vllm:prompt_tokens_total'):.1f} %"
    browser.wait(f"document.getElementById('hit-rate').textContent === '{share}'")
    assert "exact" in shown(browser, "reuse") and "ms" in shown(browser, "latency")
    row = browser.value("document.querySelector('#recent tbody tr').innerText")
    newest = server.http.get("/kvlink/requests?limit=1").json()["data"][0]
    assert newest["id"][-8:] in row and newest["miss_reason"] in row
    assert browser.complaints() == []
    assert all(url.startswith((server.url, "data:")) for url in browser.requested())


def test_a_chat_streams_and_tells_what_came_from_the_cache(browser, server):
    browser.open(server.url)
    browser.value("document.getElementById('most').value = 12")
    say(browser, "Name one river. " + filler(40, "browser chat"))
    say(browser, "And another one.")
    newest = server.http.get("/kvlink/requests?limit=1").json()["data"][0]
    hit = newest["exact"] + newest["partial"]
    assert hit > 40  # the first turn, answer included
    turn = "document.querySelector('.turn:last-child')"
    assert f"{hit} of {newest['prompt_tokens']} prompt tokens came from the cache" in browser.value(f"{turn}.innerText")
    browser.value(f"{turn}.querySelector('summary').focus()")
    browser.key("Enter", 13, "\r")
    browser.wait(f"!!{turn}.querySelector('.pieces mark')")
    marked = browser.value(f"{turn}.querySelector('.pieces mark').textContent")
    assert "Name one river." in marked and "And another one." not in marked
    assert "And another one." in browser.value(f"{turn}.querySelector('.pieces').textContent")
    assert browser.complaints() == []


def test_text_of_prompts_is_never_markup(browser, server):
    browser.open(server.url)
    browser.value("document.getElementById('most').value = 4")
    say(browser, "Same start. " + HOSTILE)
    say(browser, HOSTILE)
    with server.client() as client:  # diverges inside the hostile text, which the table then shows
        for end in ("one", HOSTILE):
            client.completions.create(model=client.models.list().data[0].id, max_tokens=1, temperature=0,
                                      prompt=f"<b>{filler(40, 'hostile')} {end}")
    browser.wait("[...document.querySelectorAll('#recent td.text')].some((cell) => cell.textContent.includes('<'))")
    assert browser.value("document.title") == "KVLink"
    assert browser.value("document.querySelectorAll('main img, main b, main script').length") == 0
    assert HOSTILE in browser.value("document.getElementById('talk').textContent")
    refusal = "try { document.body.innerHTML = '<b>x</b>'; 'allowed' } catch (e) { e.name }"
    assert browser.value(refusal) == "TypeError"  # trusted types: no text becomes markup


def test_everything_is_reached_by_the_keyboard(browser, server):
    browser.open(server.url)
    seen = []
    for _ in range(20):
        browser.key("Tab", 9)
        seen.append(browser.value("document.activeElement.id || document.activeElement.className"))
    for name in ("skip", "key", "window", "pause", "recent", "talk", "chat-text", "send", "fresh", "most"):
        assert name in seen, f"{name}: {seen}"
    browser.value("document.getElementById('pause').focus()")
    browser.key(" ", 32, " ")
    assert browser.value("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    assert shown(browser, "state") == "paused"


def test_escape_stops_an_answer(browser, server):
    browser.open(server.url)
    browser.value("document.getElementById('most').value = 3000; document.getElementById('chat-text').focus()")
    browser.type("Count from one to one thousand, every number in words.")
    browser.key("Enter", 13, "\r")
    browser.wait("document.querySelector('.turn:last-child .what').textContent.length > 10")
    browser.key("Escape", 27)
    browser.wait("document.getElementById('talk').innerText.includes('Stopped.')")
    server.wait_until_idle()


def test_a_key_is_asked_for_and_kept_in_the_page(browser, keyed_server):
    browser.open(keyed_server.url)
    browser.wait("/key is needed/.test(document.getElementById('recent-note').textContent)")
    browser.value("document.getElementById('key').focus()")
    browser.type("key-a")
    browser.key("Tab", 9)
    browser.wait("!/key is needed/.test(document.getElementById('state').textContent)")
    browser.wait("!/key/.test(document.getElementById('recent-note').textContent)")
    browser.value("document.getElementById('most').value = 4")
    say(browser, "Hello there.")
    assert browser.value("localStorage.length + sessionStorage.length + document.cookie.length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_in_both_schemes_and_on_a_phone(browser, server, scheme):
    for width in (1400, 390):
        browser.open(server.url, scheme, width)
        browser.wait("document.querySelectorAll('#recent tbody tr').length > 0")
        browser.value("document.getElementById('most').value = 16")
        say(browser, "Say hello. " + filler(30, "screens"))
        assert browser.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
        browser.screenshot(f"dashboard-{scheme}-{width}")
    luminance = """(() => {
      const of = (colour) => { const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => {
        const c = v / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const card = of(getComputedStyle(document.querySelector('section')).backgroundColor);
      return ['h2', '.soft', 'td', '.who'].map((where) => {
        const text = of(getComputedStyle(document.querySelector(where)).color);
        return (Math.max(text, card) + 0.05) / (Math.min(text, card) + 0.05); });
    })()"""
    assert min(browser.value(luminance)) >= 4.5  # WCAG 2.2, 1.4.3
