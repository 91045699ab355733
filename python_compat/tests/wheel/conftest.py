"""The wheel of this checkout with small Go programs in it, and environments that have it."""

import pytest
import wheel_support


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The wheel, built once."""
    with pytest.MonkeyPatch.context() as patch:
        yield wheel_support.build(tmp_path_factory.mktemp("first"), patch)


@pytest.fixture
def environment(tmp_path):
    """A fresh virtual environment of the Python that runs the tests."""
    return wheel_support.Environment(tmp_path / "env")


@pytest.fixture
def installed(environment, built):
    """An environment that has the wheel."""
    environment.pip("install", str(built.wheel))
    return environment
