"""What schemathesis checks on top of its own checks, and how far the server is to go."""

import schemathesis

# Parameters by which a server does as much as it is told, with the least and the most that is asked for here.
BOUNDS = {"min_worker": (1, 2), "max_worker": (1, 2), "wait": (0, 1)}

# What TorchServe answers with 500, and so does this server: docs/compatibility.md names both.
LIKE_TORCHSERVE = {(500, "ErrorDataDecoderException"), (500, "IndexOutOfBoundsException")}


def bounded(value, least, most):
    """Give a value that is within bounds; what the server takes for no number, or refuses, stays as it is."""
    if isinstance(value, list):
        return [bounded(one, least, most) for one in value]
    try:
        number = int(value)
    except (TypeError, ValueError):
        return value
    return value if isinstance(value, bool) or number < 0 or number >= 2**31 else min(max(number, least), most)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Bound the workers that are started, and how long an answer takes that is asked to wait."""
    for name, (least, most) in BOUNDS.items():
        if case.query and name in case.query:
            case.query[name] = bounded(case.query[name], least, most)


@schemathesis.check
def only_refusals(ctx, response, case):
    """No request makes the server fail. It may say that it is not ready, which it does when it was asked to."""
    if response.status_code < 500:
        return
    try:
        said = response.json()
        kind, status = said.get("type", ""), said.get("status", "")
    except (ValueError, AttributeError):
        kind, status = "", ""
    assert (response.status_code, kind) in LIKE_TORCHSERVE or (response.status_code, status) == (503, "not ready"), "%d: %s" % (
        response.status_code,
        response.text[:500],
    )
