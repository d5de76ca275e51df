"""HTTPS with a certificate of an authority of our own: clients, deadlines, files that are read again."""
import json
import os
import signal
import socket
import ssl
import subprocess

import httpx
import openai
import pytest

from conftest import BINARY, MODEL, PATIENCE_S, Server


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def issue(folder, name):
    """A certificate for 127.0.0.1 that the test's authority signed, as server.pem and server.key."""
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "new.key", "-out",
            "new.csr", "-subj", f"/CN={name}")
    (folder / "extensions").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl(folder, "x509", "-req", "-in", "new.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "extensions", "-out", "new.pem")
    os.replace(folder / "new.key", folder / "server.key")
    os.replace(folder / "new.pem", folder / "server.pem")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out",
            "ca.pem", "-days", "2", "-subj", "/CN=the test's authority")
    issue(folder, "first")
    running = Server(folder / "log", "--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"))
    running.folder = folder
    running.trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    running.http.close()
    running.http = httpx.Client(base_url=running.url, verify=running.trust, timeout=PATIENCE_S)
    running.port = int(running.url.rsplit(":", 1)[1])
    running.mute = socket.create_connection(("127.0.0.1", running.port))  # never shakes hands
    yield running
    assert running.stop() == 0


def client_of(served, trust):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0,
                         http_client=httpx.Client(verify=trust, timeout=PATIENCE_S))


def name_of(connection):
    """The common name in the certificate of a TLS connection."""
    return dict(pair[0] for pair in connection.getpeercert()["subject"])["commonName"]


def connect(served, context=None):
    plain = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S)
    # An end that TLS does not tell is an error here.
    return (context or served.trust).wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def test_the_openai_client_is_served_over_tls(served):
    assert served.url.startswith("https://")
    with client_of(served, served.trust) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": "Say hello."}]
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        stream = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content != ""


def test_a_client_that_does_not_know_the_authority_refuses(served):
    with client_of(served, ssl.create_default_context()) as client, pytest.raises(openai.APIConnectionError):
        client.models.list()


@pytest.mark.parametrize("version, is_served", [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True),
                                                (ssl.TLSVersion.TLSv1_3, True)])
def test_tls_1_2_is_the_oldest_that_is_spoken(served, version, is_served):
    context = ssl.create_default_context(cafile=str(served.folder / "ca.pem"))
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    if not is_served:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(served, context)
        return
    with connect(served, context) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")  # and it ended as TLS ends, or recv would have raised


def test_plain_http_is_told_where_it_is(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = plain.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400") and b"HTTPS is spoken here" in answer


def test_large_answers_and_requests_pass(served):
    text = "river stone " * 1500
    answer = served.http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] > 2000


def kvlink(*arguments, **environment):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, **environment})


def test_commands_ask_a_server_that_they_trust(served, tmp_path):
    where = ("--url", served.url, "--tls-ca", served.folder / "ca.pem")
    answer = kvlink("run", *where, "--prompt", "Name three colours.", "--max-tokens", 8)
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr
    chat = subprocess.run([BINARY, "chat", *map(str, where), "--temperature", "0", "--max-tokens", "8", "--quiet"], text=True,
                          input="Name three colours.\n", capture_output=True, timeout=PATIENCE_S, check=False)
    assert (chat.returncode, chat.stdout) == (0, answer.stdout), chat.stderr
    stats = kvlink("cache", "stats", *where, "--json")
    assert stats.returncode == 0 and json.loads(stats.stdout), stats.stderr
    doctor = kvlink("doctor", *where, "--json", "-")
    assert doctor.returncode in (0, 1) and json.loads(doctor.stdout)["source"] == served.url, doctor.stderr
    workload = tmp_path / "workload.jsonl"
    turn = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    workload.write_text(json.dumps({"id": "a", "turns": [turn]}) + "\n")
    bench = kvlink("bench", *where, "--workload", workload, "--json", tmp_path / "figures", "--quiet")
    assert bench.returncode == 0, bench.stderr
    assert json.loads((tmp_path / "figures").read_text())["modes"]["url"]["errors"] == 0


def test_commands_trust_the_authorities_of_the_system(served):
    authority = {"SSL_CERT_FILE": str(served.folder / "ca.pem")}
    done = kvlink("cache", "stats", "--url", f"https://localhost:{served.port}", **authority)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [("run", "--prompt", "x"), ("cache", "stats"), ("doctor",)])
def test_commands_refuse_a_server_that_they_do_not_trust(served, command):
    done = kvlink(*command, "--url", served.url)
    assert done.returncode != 0 and not done.stdout
    assert f"--url: the certificate of 127.0.0.1:{served.port} is not trusted" in done.stderr and "--tls-ca" in done.stderr


def test_commands_say_when_the_scheme_is_the_other_one(served, server):
    plain = kvlink("cache", "stats", "--url", served.url.replace("https://", "http://"))
    assert plain.returncode != 0 and "HTTPS is spoken here" in plain.stderr
    tls = kvlink("cache", "stats", "--url", server.url.replace("http://", "https://"))
    assert tls.returncode != 0 and "does not speak TLS; is it http:// there?" in tls.stderr


def test_the_certificate_is_read_again_on_sighup_and_a_broken_one_keeps_the_old(served):
    with connect(served) as old:
        assert name_of(old) == "first"
        issue(served.folder, "second")
        os.kill(served._process.pid, signal.SIGHUP)

        def is_new():
            with connect(served) as connection:
                return name_of(connection) == "second"

        served.wait_for(is_new)
        (served.folder / "server.key").write_text("nonsense\n")
        os.kill(served._process.pid, signal.SIGHUP)
        served.wait_for(lambda: "the certificate from before stays" in (served.folder / "log").read_text())
        assert is_new()
        # Who was connected before still is.
        old.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert old.recv(4096).startswith(b"HTTP/1.1 200")


def test_who_never_shakes_hands_is_hung_up_on(served):
    served.mute.settimeout(PATIENCE_S)
    try:
        assert served.mute.recv(1) == b""
    except ConnectionResetError:
        pass
    assert served.metric("kvlink_tls_failed_handshakes_total") >= 1


@pytest.mark.parametrize("cert, key, words", [("server.pem", None, "need each other"), ("none.pem", "server.key", "No such file"),
                                              ("ca.key", "server.key", "no PEM certificate"),
                                              ("ca.pem", "other.key", "not the key of the certificate")])
def test_files_that_cannot_be_used_are_told_before_the_model_is_read(served, cert, key, words):
    openssl(served.folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "other.key")
    options = ["--tls-cert", str(served.folder / cert)] + (["--tls-key", str(served.folder / key)] if key else [])
    run = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", "0", "--no-cold", *options], capture_output=True, text=True,
                         timeout=60, check=False)
    assert run.returncode != 0 and words in run.stderr and "--tls-" in run.stderr
