"""What schemathesis sends, made cheap: short answers. And without deadlines, which are answered with 504."""
import schemathesis

LENGTHS = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        body.pop("deadline_ms", None)
        body.pop("timeout", None)
        for name in LENGTHS:
            if isinstance(body.get(name), int) and not isinstance(body[name], bool):
                body[name] = min(body[name], 4) if body[name] >= 0 else 4
        if "messages" in body and "max_tokens" not in body:
            body["max_tokens"] = 4
        if "input" in body and "max_output_tokens" not in body:
            body["max_output_tokens"] = 4
    return body
