"""Connections that behave badly: silent, slow, gone without a word."""
import contextlib
import json
import socket

TCP_REPAIR = 19


def connect(port, receive_bytes=None):
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(600)
    made.connect(("127.0.0.1", port))
    return made


def silent(port):
    return connect(port)


def kept_alive(port):
    """A client that was answered, and may ask again."""
    made = connect(port)
    made.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert made.recv(4096).startswith(b"HTTP/1.1 200")
    return made


def slow_sender(port):
    """Half of a request."""
    made = connect(port)
    made.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{\"prompt\": ")
    return made


def post(made, path, fields):
    body = json.dumps(fields).encode()
    made.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    return made


def stream_reader(port, tokens):
    """A stream of which nothing is read."""
    return post(connect(port, receive_bytes=2048), "/v1/completions",
                {"prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "logprobs": 5})


def slow_reader(port):
    """An answer of some hundred kilobytes, more than sockets hold, of which nothing is read."""
    return post(connect(port, receive_bytes=2048), "/tokenize", {"prompt": "river stone " * 12000, "return_token_strs": True})


def half_open(port):
    """A peer that is gone, and the server does not know: closed without a packet where the system lets us (which takes
    a right), otherwise one that never takes or says anything any more."""
    made = slow_sender(port)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        made.close()
    return made
