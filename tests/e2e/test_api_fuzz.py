"""Many requests made up from the OpenAPI document: every answer is one that the document describes, and none is of 500
and above. Minutes."""
import pytest

from test_api_openapi import CHECKS, REFUSED, schemathesis

# By what they cost: whole answers of the model are slow.
GENERATING = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/kvlink/warm"]


def test_many_requests_that_the_document_allows_do_not_fail_the_server(server, tmp_path):
    schemathesis(server, tmp_path, "examples,fuzzing", 60, 3000, "--exclude-path", REFUSED)
    schemathesis(server, tmp_path, "examples,fuzzing", 60, 300, "--include-path", REFUSED, checks=CHECKS[1:])


@pytest.mark.parametrize("path", GENERATING)
def test_every_limit_of_a_generating_route_is_told_right(server, tmp_path, path):
    schemathesis(server, tmp_path, "coverage", 60, 3000, "--include-path", path)


def test_every_limit_of_the_other_routes_is_told_right(server, tmp_path):
    others = [option for path in [*GENERATING, REFUSED] for option in ("--exclude-path", path)]
    schemathesis(server, tmp_path, "coverage", 60, 3000, *others)
