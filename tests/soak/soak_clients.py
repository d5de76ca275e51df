"""The clients of a soak, each doing something at random: asking, streaming, leaving, reading slowly, getting it wrong."""
import json
import random
import socket
import ssl
import time

import httpx
from conftest import PATIENCE_S, filler
from soak_servers import KEYS, OPERATOR, bearer
from tier_tools import cached_of, text_of

EXACT = ({"kvlink": {"similar": "off"}}, {"deterministic": True})


def chat_body(prompt, **more):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 8, **more}


class CutOff(Exception):
    """A stream that ended as no stream should, unless its server was ended."""


class Worker:
    """A client of one thread; for each request a server, a tenant and a kind at random."""

    def __init__(self, soak, number):
        self.soak, self.number = soak, number
        self.random = random.Random(f"{soak.seed} {number}")
        self.fresh_prompts = 0
        self.clients = {}  # by URL
        self.http = self.key = None
        self.actions = {self.greedy: 6, self.streamed: 5, self.near: 5, self.completion: 2, self.choices: 2, self.fresh: 2,
                        self.cancelled: 3, self.impatient: 1, self.slow: 1, self.half_open: 1, self.wrong: 2, self.administered: 1}

    def run(self):
        while self.soak.goes_on(self.leave):
            self.do_something()
        self.leave()

    def leave(self):
        """Closes every connection."""
        for client in self.clients.values():
            client.close()
        self.clients.clear()

    def client_of(self, url):
        if url not in self.clients:
            self.clients[url] = httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False)
        return self.clients[url]

    def do_something(self):
        replica = self.random.choice(self.soak.replicas)
        epoch, was_up = replica.epoch, not replica.restarting
        action = self.random.choices(list(self.actions), list(self.actions.values()))[0]
        self.key = self.random.choice(KEYS)
        try:
            self.http = self.client_of(replica.server.url)
            action()
            self.soak.count(action.__name__)
        except (httpx.TransportError, OSError, CutOff) as error:
            self.leave()
            if was_up and replica.is_up(epoch):
                self.soak.fail(f"{replica.name}: {action.__name__}: {error!r}")
            else:
                self.soak.count("cut off by a restart")
                self.soak.over.wait(0.2)
        except Exception as error:  # noqa: BLE001: whatever it is, the run has failed
            self.soak.fail(f"{replica.name}: {action.__name__}: {error!r}")

    # --- asking ---

    def post(self, path, body):
        """The answer where there is one; a refusal must be a documented one."""
        return self.checked(self.http.post(path, json=body, headers=bearer(self.key)))

    def checked(self, answer):
        self.soak.count(f"status {answer.status_code}")
        if answer.status_code == 200:
            return answer
        if answer.status_code in (429, 503) and "retry-after" in answer.headers:
            answer.read()
            self.soak.count(f"refused: {answer.json()['error'].get('code')}")
            time.sleep(0.1)
            return None
        self.soak.fail(f"{answer.request.url.path}: {answer.status_code} {answer.read().decode(errors='replace')[:300]}")
        return None

    def events(self, body):
        with self.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=bearer(self.key)) as answer:
            if self.checked(answer):
                yield from (line[6:] for line in answer.iter_lines() if line.startswith("data: "))

    def exactly(self):
        return self.random.choice(EXACT)

    def any_prompt(self):
        return self.random.choice(self.soak.prompts)

    # --- what is compared with the reference ---

    def greedy(self):
        prompt = self.any_prompt()
        if answer := self.post("/v1/chat/completions", chat_body(prompt, **self.exactly())):
            answer = answer.json()
            self.soak.compare("chat", text_of(answer), self.soak.expected[prompt])
            if answer["kvlink"]["similar"]:
                self.soak.fail(f"an exact answer with {answer['kvlink']['similar']} similar rows")
            if self.key == "solo" and cached_of(answer):
                self.soak.fail(f"who shares nothing was served {cached_of(answer)} cached tokens")

    def streamed(self):
        prompt = self.any_prompt()
        events = list(self.events(chat_body(prompt, **self.exactly())))
        if not events:
            return
        if events[-1] != "[DONE]" or any("error" in json.loads(event) for event in events[:-1]):
            raise CutOff(f"a stream ended with {events[-2:]}"[:300])
        parts = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
        self.soak.compare("stream", "".join(parts), self.soak.expected[prompt])

    def completion(self):
        prompt = self.random.choice(list(self.soak.expected_completion))
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, **self.exactly()}
        if answer := self.post("/v1/completions", body):
            self.soak.compare("completion", answer.json()["choices"][0]["text"], self.soak.expected_completion[prompt])

    def fresh(self):
        """Nobody has asked this before; who asks again gets the same answer."""
        self.fresh_prompts += 1
        prompt = filler(self.random.randint(20, 150), f"fresh {self.number} {self.fresh_prompts}") + " And then?"
        answers = [self.post("/v1/chat/completions", chat_body(prompt, **self.exactly())) for _ in range(2)]
        if all(answers):
            self.soak.compare("asked again", text_of(answers[1].json()), text_of(answers[0].json()))

    def near(self):
        """After an exact request, one for a similar prompt: with rows of the first, and labelled; or exact like any other."""
        self.key = self.random.choice(["acme", "acme", "blue", "tight", "clinic"])
        first, second = self.random.sample(self.soak.near_prompts, 2)
        if answer := self.post("/v1/chat/completions", chat_body(first, **self.exactly())):
            self.soak.compare("near, exact", text_of(answer.json()), self.soak.expected[first])
        body = chat_body(second, kvlink={"similar": self.random.choice(["on", "on", "strict"])})
        if answer := self.post("/v1/chat/completions", body):
            answer = answer.json()
            label = answer["kvlink"]
            self.soak.count(f"verdict {label['verdict']}")
            if label["similar"] == 0:
                self.soak.compare("near", text_of(answer), self.soak.expected[second])
            elif self.key == "clinic" or label["verdict"] not in ("accepted", "enlarged"):
                self.soak.fail(f"{self.key} got {label}")

    # --- what has no reference ---

    def choices(self):
        n = self.random.randint(2, 4)
        body = chat_body(self.any_prompt(), n=n, temperature=1, seed=self.random.getrandbits(31), max_tokens=12)
        if answer := self.post("/v1/chat/completions", body):
            choices = answer.json()["choices"]
            if [choice["index"] for choice in choices] != list(range(n)):
                self.soak.fail(f"{n} choices were asked for: {choices}")

    def cancelled(self):
        left = self.random.randint(0, 6)
        for _ in self.events(chat_body(self.any_prompt(), max_tokens=64, ignore_eos=True)):
            left -= 1
            if left < 0:
                return  # closes the connection

    def impatient(self):
        body = chat_body(self.any_prompt(), max_tokens=200, ignore_eos=True, deadline_ms=self.random.randint(1, 300))
        answer = self.http.post("/v1/chat/completions", json=body, headers=bearer(self.key))
        if answer.status_code == 504:
            self.soak.count("status 504")
        else:
            self.checked(answer)

    def slow(self):
        for number, _ in enumerate(self.events(chat_body(self.any_prompt(), max_tokens=40, ignore_eos=True))):
            if number % 10 == 0 and self.soak.over.wait(self.random.uniform(0.1, 1)):
                return

    def half_open(self):
        """Part of a request, and nothing more; over TLS, part of a handshake, or plain words to a port that speaks TLS."""
        words = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 500\r\n\r\n{\"mess"[:self.random.randint(0, 70)]
        with socket.create_connection((self.http.base_url.host, self.http.base_url.port), timeout=PATIENCE_S) as connection:
            if self.http.base_url.scheme == "https" and self.random.random() < 0.5:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(connection) as spoken:
                    spoken.sendall(words)
                    self.soak.over.wait(self.random.uniform(0, 1))
                return
            connection.sendall(words)
            self.soak.over.wait(self.random.uniform(0, 1))

    def wrong(self):
        known = bearer(OPERATOR)
        ask, status = self.random.choice([
            (lambda: self.http.post("/v1/chat/completions", content=b"{\"messages\": [", headers=known), 400),
            (lambda: self.http.post("/v1/chat/completions", json=chat_body("a", temperature=9), headers=known), 400),
            (lambda: self.http.post("/v1/completions", json={"prompt": [1 << 30]}, headers=known), 400),
            (lambda: self.http.get("/nothing", headers=known), 404),
            (lambda: self.http.get("/v1/completions", headers=known), 405),
            (lambda: self.http.get("/health", headers={"X-Long": "a" * (20 << 10)}), 431),
            (lambda: self.http.get("/v1/models"), 401),
            (lambda: self.http.get("/metrics", headers=bearer("acme")), 403),
        ])
        answer = ask()
        if answer.status_code not in (status, 503):
            self.soak.fail(f"a wrong request was answered {answer.status_code}, not {status}: {answer.text[:300]}")

    def administered(self):
        prompt = {"messages": [{"role": "user", "content": self.any_prompt()}]}
        path, body, allowed = self.random.choice([
            ("/kvlink/pin", {**prompt, "ttl_s": 1}, (200, 404, 409, 503)),
            ("/kvlink/warm", prompt, (200, 429, 503)),
            ("/kvlink/flush", {}, (200, 503)),
            ("/kvlink/blocks", None, (200, 503)),
        ])
        answer = (self.http.get(path, headers=bearer(OPERATOR)) if body is None
                  else self.http.post(path, json=body, headers=bearer(OPERATOR)))
        if answer.status_code not in allowed:
            self.soak.fail(f"{path}: {answer.status_code} {answer.text[:300]}")
