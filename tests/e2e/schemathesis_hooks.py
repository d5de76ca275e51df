"""What schemathesis sends, made cheap: short answers. And without deadlines, which are answered with 504."""
import schemathesis

LENGTHS = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")


@schemathesis.hook
def before_call(context, case, **kwargs):
    body = case.body
    if not isinstance(body, dict):
        return
    body = {name: value for name, value in body.items() if name not in ("deadline_ms", "timeout")}
    for name in LENGTHS:
        if isinstance(body.get(name), int) and not isinstance(body[name], bool):
            body[name] = min(body[name], 4) if body[name] >= 0 else 4
    if "messages" in body and all(body.get(name) is None for name in LENGTHS[:3]):
        body["max_tokens"] = 4
    if "input" in body and body.get("max_output_tokens") is None:
        body["max_output_tokens"] = 4
    case.body = body
