"""The dashboard in a real Chromium, driven by the DevTools protocol over a pipe (no other dependency)."""
import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
import time

import httpx
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

    def press(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

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
        size = self.value("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
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


def complete(server, *prompts):
    with server.client() as client:
        for prompt in prompts:
            client.completions.create(model=client.models.list().data[0].id, prompt=prompt, max_tokens=1, temperature=0)


def wait_for_tree(browser, more="true"):
    browser.value("document.getElementById('tree-section').scrollIntoView()")  # lists come while it is in sight
    browser.wait(f"!!state.tree && state.tree.nodes.length > 0 && ({more})")


def chosen(browser):
    return browser.value("document.querySelector('#block h3').textContent")


def test_the_tree_of_blocks_is_drawn_and_tells_of_each_block(browser, server):
    server.http.post("/kvlink/flush")
    start = filler(100, "tree")
    complete(server, f"{start} left", f"{start} right and more", f"{filler(40, 'another')} tree")
    browser.open(server.url)
    wait_for_tree(browser, "state.tree.rows.length >= 3")
    drawn = """(() => { const canvas = document.getElementById('tree-canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let painted = 0; for (let i = 3; i < data.length; i += 4) painted += data[i] > 0; return painted; })()"""
    browser.value("drawTree()")
    assert browser.value(drawn) > 3000
    listed = server.http.get("/kvlink/blocks").json()
    assert f"{listed['total']} blocks in memory" in shown(browser, "tree-note")
    assert "2 different beginnings" in shown(browser, "tree-note")

    browser.value("document.getElementById('tree').focus()")
    browser.key("Home", 36)
    browser.wait("document.getElementById('block-text').textContent.includes('river') || document.getElementById('block-text').textContent.includes('item')")
    first = chosen(browser)
    text = browser.value("document.getElementById('block-text').textContent")
    assert text[:30] in start and "left" not in text
    facts = browser.value("document.querySelector('#block dl').innerText")
    assert "Requests so far" in facts and "Age" in facts and "Users now" in facts
    browser.key("ArrowRight", 39)
    stem = chosen(browser)
    assert stem != first
    browser.key("ArrowRight", 39)
    browser.wait("document.getElementById('block-text').textContent.includes('left')")
    browser.key("ArrowDown", 40)
    browser.wait("document.getElementById('block-text').textContent.includes('right and more')")
    browser.key("ArrowLeft", 37)
    assert chosen(browser) == stem
    browser.key("ArrowLeft", 37)
    assert chosen(browser) == first
    browser.value("document.getElementById('tree').scrollIntoView()")
    place = browser.value("""(() => { const node = state.tree.nodes[1], view = document.getElementById('tree').getBoundingClientRect();
      return [view.left + boxLeft(node) + 10, view.top + middle(node.row)]; })()""")
    browser.press(*place)
    assert chosen(browser) != first
    # A choice outlasts the next list.
    before = chosen(browser)
    browser.value("pollBlocks()")
    assert chosen(browser) == before and browser.value("state.tree.selected !== null")
    browser.value("document.getElementById('fold').click()")
    assert browser.value("state.tree.nodes.length") == listed["total"]
    assert browser.complaints() == []


def test_what_sharing_saves_is_seen_while_requests_run(browser, server):
    text, stop = filler(250, "saved while running"), threading.Event()
    complete(server, text)

    def ask():
        body = {"prompt": text, "max_tokens": 3000, "temperature": 0, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
            for _ in answer.iter_bytes():
                if stop.is_set():
                    return

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        browser.open(server.url)
        browser.wait("/of which [1-9][0-9.]* % saved/.test(document.getElementById('sharing-more').textContent)")
        browser.wait("/use by several [1-9]/.test(document.getElementById('sharing-bar').getAttribute('aria-label'))")
        wait_for_tree(browser, "state.blocks.list.some((block) => block.users > 1)")
        assert "by several requests at once" in shown(browser, "tree-note")
    finally:
        stop.set()
        for client in clients:
            client.join()
    server.wait_until_idle()
    browser.wait("document.getElementById('sharing-more').textContent.startsWith('Nothing runs now.')")


LARGE = """(() => {
  const total = 10000, list = Array.from({ length: total }, (_, i) => {
    const parent = i < 40 ? i : i % 7 === 0 ? 1 + i % 40 : i;  // a stem of 40, and some 1,400 branches
    return { id: i + 1, parent: parent || null, base: i % 997 === 5 ? 3 : null, kind: i % 7 === 6 ? "tail" : "full", tenant: "default", salt: null,
      position: 32 * (i % 50), tokens: 32, length: 32 * (i % 50) + 32, bytes: 737280, children: 1, references: 1, users: i % 11 === 0 ? 2 : 0,
      uses: i < 40 ? 400 : 1 + i % 3, state: "cached", hot: true, tainted: i % 501 === 500, writer: null, tiers: i % 5 === 0 ? ["cold"] : [],
      pinned_s: i % 300 === 2 ? 60 : null, age_s: i, idle_s: 1 };
  });
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (/^\\/kvlink\\/blocks\\/\\d+/.test(path)) return Promise.resolve(new Response(JSON.stringify({ text: "a text", text_withheld: null })));
    const found = /^\\/kvlink\\/blocks\\?limit=(\\d+)(?:&cursor=1\\.(\\d+))?$/.exec(path);
    if (!found) return real(path, options);
    const first = Number(found[2] || 0), end = Math.min(total, first + Number(found[1]));
    return Promise.resolve(new Response(JSON.stringify({ object: "list", total, first, next: end < total ? "1." + end : null, data: list.slice(first, end) })));
  };
})()"""


def test_ten_thousand_blocks_do_not_freeze_the_page(browser, server):
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=LARGE)["identifier"]
    try:
        browser.open(server.url)
        wait_for_tree(browser, "state.blocks.list.length === 10000")
        assert shown(browser, "tree-note").startswith("10,000 blocks in memory;")
        browser.value("document.getElementById('tree').scrollIntoView()")
        browser.screenshot("dashboard-tree-large")
        for fold in (True, False):  # a frame draws what is in view and no more, wherever that is
            browser.value(f"document.getElementById('fold').checked = {str(fold).lower()}; document.getElementById('fold').dispatchEvent(new Event('change'))")
            rows = browser.value("state.tree.rows.length")
            assert rows > 1000
            for share in (0, 0.5, 1):
                browser.value(f"selectNode(state.tree.rows[Math.floor({share} * (state.tree.rows.length - 1))][0]); drawTree()")
                assert 0 < browser.value("state.tree.drawn") < 600
        longest = browser.value("""new Promise((resolve) => { let frames = 0, last = performance.now(), longest = 0;
          let polled = false;
          const step = (now) => { longest = Math.max(longest, now - last); last = now; ++frames < 10 || !polled ? requestAnimationFrame(step) : resolve(longest); };
          pollBlocks().then(() => { polled = true; }); requestAnimationFrame(step); })""")
        print(f"longest time between two frames while 10,000 blocks are fetched and placed: {longest:.0f} ms")
        browser.value("document.getElementById('tree').focus()")
        browser.key("End", 35)
        assert "10000" in chosen(browser) or chosen(browser).startswith("Block")
        say(browser, "Does the page still answer?")
        assert browser.complaints() == []
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_everything_is_reached_by_the_keyboard(browser, server):
    browser.open(server.url)
    wait_for_tree(browser)
    seen = []
    for _ in range(26):
        browser.key("Tab", 9)
        seen.append(browser.value("document.activeElement.id || document.activeElement.className"))
    for name in ("skip", "key", "window", "pause", "fold", "tree", "recent", "talk", "chat-text", "send", "fresh", "most"):
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
    start = filler(90, "screens")
    complete(server, start + " one", start + " two", start + " two, and on", filler(60, "other screens"))
    server.http.post("/kvlink/pin", json={"prompt": filler(60, "other screens"), "ttl_s": 60})
    for width in (1400, 390):
        browser.open(server.url, scheme, width)
        wait_for_tree(browser)
        browser.value("document.getElementById('tree').focus()")
        browser.key("Home", 36)
        browser.wait("document.getElementById('block-text').textContent.length > 10")
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
