"""`make serve`: the port, and what is watched."""

import socket

import pytest

from scripts import ROOT, serve


def test_a_taken_port_is_named_with_a_free_way():
    with socket.socket() as listener:
        listener.bind((serve.HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        said = serve.port_problem(port)
    assert said.startswith(f"Port {port} is in use, perhaps by another make serve")
    assert "\n    fix: make serve PORT=" in said


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port(port):
    assert serve.port_problem(port).startswith(f"{port} is no port\n    fix:")


def test_a_port_that_can_not_be_opened(monkeypatch):
    monkeypatch.setattr(serve, "HOST", "192.0.2.1")  # kept for documentation
    said = serve.port_problem(8000)
    assert said.startswith("Port 8000 can't be opened: ")
    assert said.endswith("fix: make serve PORT=8001")


def test_a_free_port_is_no_problem():
    with socket.socket() as listener:
        listener.bind((serve.HOST, 0))
        port = listener.getsockname()[1]
    assert serve.port_problem(port) == ""


def test_serves_on_this_machine_only_and_watches_what_exists():
    words = serve.command(8001)
    assert "127.0.0.1:8001" in words
    for folder in serve.WATCHED:
        assert (ROOT / folder).is_dir()
        assert folder in words
