"""The command `torchserve` as a function."""


def start() -> None:
    """Become the server, with the arguments of this process. Does not return."""
    from flambeau.cli import torchserve

    torchserve()
