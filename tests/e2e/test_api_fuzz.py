"""Many requests made up from the OpenAPI document: no answer of 500 and above. Minutes."""
from test_api_openapi import schemathesis


def test_many_requests_that_the_document_allows_do_not_fail_the_server(server, tmp_path):
    schemathesis(server, tmp_path, examples=60, seconds=3000)
