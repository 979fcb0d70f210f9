"""Sockets of agents: what is no message is refused, what hangs is ended, and the server goes on."""

import contextlib
import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posterity.engine.refusal import Refusal
from posterity.engine.transports.unix import (
    HEAD_BYTES,
    Absent,
    Client,
    Server,
    framed,
    from_message,
    of_error,
    received,
    to_message,
)
from posterity.errors import ArtifactError, PosterityError, SiteError, UsageError

MOST = 2 * HEAD_BYTES


def echo(head, body):
    match head.get("do"):
        case "echo":
            return {"ok": True, "head": head}, body
        case "refuse":
            raise UsageError(found="this", expected="that", fix="Do so.")
        case "wait":
            time.sleep(head["seconds"])
            return {"ok": True}, b""
    return head["nothing"]


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "site.sock", echo, most=MOST, whole=0.5) as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.path, timeout=10.0) as client:
        yield client


def once(path: Path):
    with Client(path) as client:
        return client.ask("echo")[0]["ok"]


def raw(server: Server) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(server.path))
    connection.settimeout(10.0)
    return connection


def test_an_answer_may_be_as_large_as_the_server_allows(tmp_path):
    content = bytes(2**26 + 2 * HEAD_BYTES)
    with Server(tmp_path / "s", echo, most=2**27) as server, Client(server.path) as client:
        assert client.ask("echo", content)[1] == content


def test_errors_keep_their_kind(client):
    with pytest.raises(UsageError, match="found this; expected that"):
        client.ask("refuse")
    with pytest.raises(PosterityError, match="KeyError"):
        client.ask("else")
    assert client.ask("echo")[0]["ok"]
    sentences = {"found": "this", "expected": "that", "fix": ""}
    assert type(of_error({"kind": "Refusal", **sentences})) is Refusal
    for kind in ("functools", "Any", "ConvergenceWarning", "?"):
        assert type(of_error({"kind": kind, **sentences})) is SiteError


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON), st.binary())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_messages_come_back_as_they_were(head, body):
    assert from_message(to_message(head, body)) == (head, body)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\n{}",
        b"[]\n",
        b"\xff\n",
        b'{"do": NaN}\n',
        b"[" * 50_000 + b"\n",
        b'{"a":' * 10_000 + b"\n",
        b"9" * 5000 + b"\n",
        b'{"do": "' + b"x" * HEAD_BYTES + b'"}\n',
    ],
)
def test_a_server_says_what_is_no_message_and_answers_the_next(server, content):
    with framed(raw(server), 10.0) as connection:
        connection.send_bytes(content)
        assert from_message(received(connection, MOST))[0]["error"]["kind"] == "Refusal"
        connection.send_bytes(to_message({"do": "echo"}))
        assert from_message(received(connection, MOST))[0]["ok"]


def test_streams_of_junk_never_end_a_server(server, client):
    @given(st.binary(max_size=300), st.booleans())
    @settings(max_examples=150, deadline=None)
    def survives(content, whole):
        with raw(server) as connection:
            connection.sendall(content)
            if whole:
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):  # it did not care for the rest
                    while connection.recv(1000):
                        pass

    survives()
    assert client.ask("echo")[0]["ok"]


def test_a_message_that_is_too_large_is_refused_before_it_is_read(server, client):
    with pytest.raises(Refusal, match="at most"):
        client.ask("echo", bytes(100 * 2**20))
    assert client.ask("echo", b"x")[1] == b"x"
    with framed(raw(server), 10.0) as connection:
        with contextlib.suppress(ConnectionError):  # the server may have closed its end by then
            connection.send_bytes(bytes(MOST + 1))
        assert from_message(received(connection, MOST))[0]["error"]["kind"] == "Refusal"
        with pytest.raises((EOFError, ConnectionError)):
            connection.recv_bytes()


def test_a_client_does_not_wait_for_ever(server):
    with Client(server.path, timeout=0.2) as client:
        with pytest.raises(SiteError, match="no answer"):
            client.ask("wait", seconds=1.0)
        assert client.ask("wait", wait=20.0, seconds=0.4)[0]["ok"]


def test_clients_at_once_get_their_own_answers(server):
    wrong = []

    def ask(number: int) -> None:
        with Client(server.path) as client:
            for _ in range(20):
                body = bytes([number]) * 5000
                head, answer = client.ask("echo", body, number=number)
                if answer != body or head["head"]["number"] != number:
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path):
    path = tmp_path / "site.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with pytest.raises(Absent):
        once(path)
    with Server(path, echo) as server:
        assert once(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        os.unlink(path)
        with Server(path, echo):  # of another process
            server.close()
            assert once(path)
    assert not path.exists()


def test_a_connection_that_was_kept_is_made_anew(tmp_path):
    path = tmp_path / "site.sock"
    with Client(path) as client:
        for _ in range(2):
            with Server(path, echo, whole=0.2):
                assert client.ask("echo")[0]["ok"]
        with pytest.raises(SiteError):
            client.ask("echo")


def test_a_socket_may_lie_deep_in_folders_of_any_name(tmp_path):
    folder = tmp_path / "with spaces \u2603 and 'quotes'" / ("deep" * 40)
    folder.mkdir(parents=True)
    with Server(folder / "site.sock", echo):
        assert once(folder / "site.sock")
    with pytest.raises(ArtifactError, match="cannot be written"):
        Server(Path("/proc/site.sock"), echo)


def test_half_a_message_holds_nobody_up_for_long(server, client):
    with raw(server) as connection:
        connection.sendall((1000).to_bytes(4, "big") + b"{")
        assert client.ask("echo")[0]["ok"]
        start = time.monotonic()
        assert connection.recv(1) == b""
        assert time.monotonic() - start < 20.0


def test_a_connection_that_rests_is_ended(tmp_path):
    with Server(tmp_path / "site.sock", echo, idle=0.2) as server, raw(server) as connection:
        start = time.monotonic()
        assert connection.recv(1) == b""
        assert time.monotonic() - start < 20.0


def test_a_head_has_at_most_64_kilobytes():
    plain = len(to_message({"do": ""}))
    assert from_message(to_message({"do": "x" * (2**16 + 1 - plain)}))[1] == b""
    with pytest.raises(Refusal, match="65536 bytes"):
        from_message(to_message({"do": "x" * (2**16 + 2 - plain)}))
