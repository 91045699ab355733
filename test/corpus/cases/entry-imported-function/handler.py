from implementation import handle  # noqa: F401
