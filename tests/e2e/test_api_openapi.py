"""The OpenAPI document: valid, complete, and true of the server (a short run of schemathesis)."""
import json
import os
import re
import subprocess
import sys

import openapi_spec_validator
import pytest

from conftest import BINARY

SOURCE = os.environ["KVLINK_SOURCE_DIR"]


@pytest.fixture(scope="module")
def document(server):
    return server.http.get("/openapi.json").json()


def test_the_document_is_valid_openapi(document):
    assert document["openapi"].startswith("3.1")
    openapi_spec_validator.validate(document)
    version = subprocess.run([BINARY, "version"], capture_output=True, text=True, check=True).stdout
    assert document["info"]["version"] in version


def references(node):
    """Everything that a part of the document refers to."""
    if isinstance(node, dict):
        return ({node["$ref"]} if "$ref" in node else set()).union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_document_is_tidy(document):
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for operation in operations:
        assert operation["summary"].endswith(".") and set(operation["tags"]) <= tags, operation["operationId"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            given = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "path"}
            assert given == set(re.findall(r"\{(\w+)\}", path)), path
    there = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in document["components"][kind]}
    assert references(document) == there  # nothing is missing, and nothing is left over


def test_every_route_of_the_server_is_described(document, server):
    with open(f"{SOURCE}/src/server/api.cc", encoding="utf-8") as source:
        routes = re.findall(r'\{"([^"]+)", "(GET|POST|DELETE)",', source.read())
    assert len(routes) > 12
    described = {(re.sub(r"\{[^}]+\}", "", path), method.upper())
                 for path, methods in document["paths"].items() for method in methods}
    for path, method in routes:
        assert (path, method) in described, f"{method} {path}"


def test_every_field_that_is_read_is_described(document):
    text = json.dumps(document)
    for name in ("api_request.cc", "anthropic.cc", "responses.cc"):
        with open(f"{SOURCE}/src/server/{name}", encoding="utf-8") as source:
            code = source.read()
        for field in re.findall(r'(?:fields|nested)\.(?:Bool|Number|Integer|String|Array|Object)\("(\w+)"', code):
            assert f'"{field}"' in text, f"{name}: {field}"


def resolved(document, node):
    """What a reference stands for."""
    while "$ref" in node:
        at = document
        for step in node["$ref"].lstrip("#/").split("/"):
            at = at[step]
        node = at
    return node


def test_every_answer_is_described_with_the_headers_that_it_has(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = {status: resolved(document, answer) for status, answer in operation["responses"].items()}
            assert {"408", "431"} <= set(answers), path
            for status, answer in answers.items():
                headers = set(answer["headers"])
                assert {"X-Request-Id", "traceresponse"} <= headers, (path, status)
                assert ("Retry-After" in headers) == (status in ("429", "503")), (path, status)
                assert ("WWW-Authenticate" in headers) == (status == "401"), (path, status)


# Of HTTP itself: no document describes them.
PLAIN = {"server", "content-type", "content-length", "transfer-encoding", "connection"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("method,path,body,status", [
    ("get", "/", None, 200), ("get", "/health", None, 200), ("get", "/metrics", None, 200), ("get", "/v1/models", None, 200),
    ("get", "/kvlink/blocks", None, 200), ("post", "/v1/completions", {"prompt": "x", "max_tokens": 1}, 200),
    ("post", "/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True}, 200),
    ("post", "/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}, 200),
    ("post", "/v1/messages", {"messages": []}, 400), ("post", "/v1/completions", {}, 400),
    ("post", "/v1/embeddings", {}, 501), ("post", "/kvlink/pin", {"prompt": "never sent"}, 404),
    ("get", "/kvlink/blocks/1234567890", None, 404)])
def test_an_answers_headers_are_those_of_the_document(document, server, method, path, body, status):
    answer = server.http.request(method, path, json=body, headers={"X-Request-Id": "mine-7", "traceparent": TRACE})
    assert answer.status_code == status, answer.text
    described = document["paths"]["/kvlink/blocks/{id}" if path.startswith("/kvlink/blocks/") else path][method]
    headers = {name.lower(): resolved(document, header)
               for name, header in resolved(document, described["responses"][str(status)])["headers"].items()}
    seen = {name: value for name, value in answer.headers.items() if name not in PLAIN}
    assert set(seen) <= set(headers)
    assert {name for name, header in headers.items() if header.get("required")} <= set(seen)
    for name, value in seen.items():
        schema = headers[name]["schema"]
        assert value == schema.get("const", value) and re.search(schema.get("pattern", ""), value), name
    assert seen["x-request-id"] == "mine-7" and TRACE[3:35] in seen["traceresponse"]


CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "unsupported_method", "allow_header_conformance"]


def schemathesis(server, folder, phases, examples, seconds, *options, checks=tuple(CHECKS)):
    """Requests made up from the document: no answer of 500 and above, and none that the document does not describe."""
    program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": here}
    run = subprocess.run(
        [program, "run", f"{server.url}/openapi.json", "--url", server.url, "--checks", ",".join(checks),
         "--max-examples", str(examples), "--phases", phases, "--seed", "1", "--workers", "2",
         "--request-timeout", "60", "--generation-database", "none", *options],
        capture_output=True, text=True, timeout=seconds, check=False, env=environment, cwd=folder)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert server.http.get("/health").status_code == 200


# Always 501, which is no failure there.
REFUSED = "/v1/embeddings"


def test_no_request_that_the_document_allows_fails_the_server(server, tmp_path):
    schemathesis(server, tmp_path, "examples,fuzzing", 4, 500, "--exclude-path", REFUSED)
    schemathesis(server, tmp_path, "examples,fuzzing", 2, 100, "--include-path", REFUSED, checks=CHECKS[1:])
