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


def test_every_route_of_the_server_is_described(document, server):
    with open(f"{SOURCE}/src/server/api.cc", encoding="utf-8") as source:
        routes = re.findall(r'\{(kModelPrefix|"[^"]+"), "(GET|POST|DELETE)",', source.read())
    assert len(routes) > 12
    described = {(re.sub(r"\{[^}]+\}", "", path), method.upper())
                 for path, methods in document["paths"].items() for method in methods}
    for path, method in routes:
        path = "/v1/models/" if path == "kModelPrefix" else path.strip('"')
        assert (path, method) in described, f"{method} {path}"


def test_every_field_that_is_read_is_described(document):
    text = json.dumps(document)
    for name in ("api_request.cc", "anthropic.cc", "responses.cc"):
        with open(f"{SOURCE}/src/server/{name}", encoding="utf-8") as source:
            code = source.read()
        for field in re.findall(r'(?:fields|nested)\.(?:Bool|Number|Integer|String|Array|Object)\("(\w+)"', code):
            assert f'"{field}"' in text, f"{name}: {field}"


def schemathesis(server, folder, examples, seconds):
    """Requests made up from the document; any answer of 500 and above fails."""
    program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": here}
    run = subprocess.run(
        [program, "run", f"{server.url}/openapi.json", "--url", server.url, "--checks", "not_a_server_error",
         "--max-examples", str(examples), "--phases", "examples,fuzzing", "--seed", "1", "--workers", "2",
         "--request-timeout", "60", "--generation-database", "none", "--exclude-path", "/v1/embeddings"],
        capture_output=True, text=True, timeout=seconds, check=False, env=environment, cwd=folder)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert server.http.get("/health").status_code == 200


def test_no_request_that_the_document_allows_fails_the_server(server, tmp_path):
    schemathesis(server, tmp_path, examples=4, seconds=500)
