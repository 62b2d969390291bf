"""What tests in several folders need."""

import socket

import pytest


@pytest.fixture
def unused_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
