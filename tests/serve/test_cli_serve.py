"""`coexec serve` from outside: what it prints, answers, refuses, and how it ends."""

import errno
import http.client
import importlib.util
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.cli.serving import client_token
from coexec.serve import server
from coexec.serve.server import is_loopback, listen, url_of
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.servers import ask, fed, infer
from tests.helpers.small_models import from_nodes, tensor_info


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes vectors of any length, and a moment for large ones."""
    path = tmp_path_factory.mktemp("serve") / "doubling.onnx"
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    onnx.save(from_nodes(nodes, [tensor_info("x", ["n"])], [tensor_info("y", ["n"])]), str(path))
    return path


@contextmanager
def started(model: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The verb in a process of its own, and the first line that it prints."""
    command = [
        sys.executable,
        "-m",
        "coexec",
        "serve",
        str(model),
        "--port",
        "0",
        *words,
        "--cache",
        str(model.parent / "cache"),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=ENOUGH_S)
    return process.returncode, out, err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_cleanly(model: Path, number: signal.Signals) -> None:
    with started(model) as (process, line):
        url = line.split()[4].rstrip(",")
        assert line.startswith("doubling is served at http://127.0.0.1:") and "at a time" in line
        parts = urlsplit(url)
        assert parts.path == "/v2/models/doubling"
        status, answer = infer(parts.netloc, fed([1, 2, 3], [3]), name="doubling")
        assert status == 200 and answer["outputs"][0]["data"] == [2, 4, 6]
        process.send_signal(number)
        assert ended(process) == (0, "", "")


def test_a_request_under_way_is_answered_before_the_end(model: Path) -> None:
    """Its body is still coming when the signal comes."""
    with started(model, "--json", "--name", "m", "--credits", "5") as (process, line):
        rest = ""
        assert process.stdout is not None
        while not rest.endswith("\n}\n"):
            rest += process.stdout.readline()
        facts = json.loads(line + rest)
        assert facts["name"] == "m" and facts["credits"] == 5
        parts = urlsplit(facts["url"])
        body = json.dumps(fed([1, 2], [2])).encode()
        connection = http.client.HTTPConnection(parts.netloc, timeout=ENOUGH_S)
        connection.putrequest("POST", f"{parts.path}/infer")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:10])
        idle = http.client.HTTPConnection(parts.netloc, timeout=ENOUGH_S)
        idle.request("GET", "/v2/health/live")  # an open connection without a request
        idle.getresponse().read()
        process.send_signal(signal.SIGTERM)
        # New connections hear that the server is not ready, and new requests are refused.
        until(lambda: ask(parts.netloc, "GET", "/v2/health/ready")[0] == 503)
        assert ask(parts.netloc, "GET", "/v2/health/live")[0] == 200
        status, headers, refusal = ask(parts.netloc, "POST", f"{parts.path}/infer", body)
        assert (status, headers["connection"]) == (503, "close")
        assert "the server ends, and takes no new requests" in json.loads(refusal)["error"]
        connection.send(body[10:])
        answer = json.loads(connection.getresponse().read())
        assert answer["outputs"][0]["data"] == [2, 4]
        connection.close()
        idle.close()
        assert ended(process) == (0, "", "")


def test_a_port_in_use_is_one_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"coexec: cannot listen at port {port} of '127.0.0.1': Address already")
    assert err.endswith("port 0 is any free one\n") and err.count("\n") == 1


def test_a_port_of_the_administrator_is_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refused)
    assert main(["serve", str(model), "--port", "80"]) == 2
    err = capsys.readouterr().err
    assert "Permission denied" in err and "above 1023" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port 70000 is not between 0 and 65535"),
        (["--port", "-1"], "--port -1 is not between 0 and 65535"),
        (["--host", "203.0.113.7"], "of '203.0.113.7': Cannot assign requested address"),
        (["--host", "no.such.host.invalid"], "of 'no.such.host.invalid': "),
        (["--host", "a" * 300], "cannot listen at port 0 of 'aaa"),
        (["--credits", "0"], "credits=0 answer no request; give at least 1"),
        (["--queue", "-1"], "--queue -1 is no number of requests; give 0 or more"),
        (["--deadline", "0"], "--deadline 0 is no time; give seconds above 0"),
        (["--deadline", "nan"], "--deadline nan is no time"),
        (["--stop-time", "-1"], "--stop-time -1 is no time"),
        (["--name", "stats"], "no model can have the name 'stats'"),
        (["--name", "a/b"], "the name 'a/b' cannot be a part of a URL"),
        (["--max-request", "much"], "'much' is not a size"),
        (["--max-request", "0"], "--max-request 0 lets no request in; give for example 256MiB"),
        (["--devices", "cpu:9999"], "cpu:9999"),
        (["--planner", "nine"], "'nine'"),
        (["a=M", "a=M"], "two models have the name 'a'; give another one as NAME=MODEL"),
        (["b=M", "--name", "c"], "--name is for one model, and there are 2; give names as"),
        (["--repository", "none"], "--repository 'none' is no folder; name one with models"),
        (["x=none.onnx"], "none.onnx"),
        (None, "there is nothing to serve; name a model, or a folder with --repository"),
    ],
)
def test_options_without_a_meaning_are_one_line(
    model: Path,
    words: list[str] | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "serve", lambda *_: pytest.fail("it serves"))
    expected = 3 if said in ("cpu:9999", "none.onnx") else 2
    named = [] if words is None else [str(model), *(w.replace("M", str(model)) for w in words)]
    assert main(["serve", "--port", "0", *named]) == expected
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("coexec: ") and err.count("\n") == 1
    assert said in err


def test_other_machines_are_answered_with_a_token_only(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(model), "--port", "0", "--host", "0.0.0.0"]) == 2
    err = capsys.readouterr().err
    assert "--host 0.0.0.0 answers other machines, and there is no token; write one" in err
    assert "or say --without-token" in err and err.count("\n") == 1
    missing = tmp_path / "none"
    assert main(["serve", str(model), "--port", "0", "--token-file", str(missing)]) == 2
    assert f"there is no token in {str(missing)!r}; write one" in capsys.readouterr().err


def test_a_cluster_has_the_same_rule(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="coexec cluster needs Ray")
    words = ["--shape", "x=4", "--port", "0", "--host", "0.0.0.0"]
    assert main(["cluster", "serve", str(model), *words]) == 2
    err = capsys.readouterr().err
    assert "--host 0.0.0.0 answers other machines, and there is no token; write one" in err
    assert "--client-token-file, or say --without-token" in err and err.count("\n") == 1


def test_a_token_answers_other_machines(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    with started(model, "--host", "0.0.0.0", "--token-file", str(file)) as (process, line):
        assert "http://0.0.0.0:" in line
        address = urlsplit(line.split()[4].rstrip(",")).netloc.replace("0.0.0.0", "127.0.0.1")
        assert ask(address, "GET", "/v2/models/doubling")[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert ask(address, "GET", "/v2/models/doubling", headers=right)[0] == 200
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "", "")


def test_a_token_that_every_user_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    with listen("127.0.0.1", 0) as listener:
        file.chmod(0o640)
        assert client_token(file, False, "127.0.0.1", listener) == "secret"
        assert capsys.readouterr().err == ""
        file.chmod(0o644)
        assert client_token(file, False, "127.0.0.1", listener) == "secret"
    assert f"every user of this machine can read the token in {str(file)!r}" in (
        capsys.readouterr().err
    )


def test_without_a_token_other_machines_are_warned_of(model: Path) -> None:
    with started(model, "--host", "0.0.0.0", "--without-token") as (process, line):
        assert "http://0.0.0.0:" in line
        process.send_signal(signal.SIGINT)
        code, _, err = ended(process)
        assert code == 0
        assert err == (
            "coexec: warning: other machines are answered at 0.0.0.0, without authentication or "
            "encryption; a proxy can add both\n"
        )


def square(folder: Path) -> Path:
    """A model that fails for matrices that are not square."""
    nodes, sizes = [helper.make_node("MatMul", ["x", "x"], ["y"])], ["a", "b"]
    proto = from_nodes(nodes, [tensor_info("x", sizes)], [tensor_info("y", sizes)])
    onnx.save(proto, str(folder / "square.onnx"))
    return folder / "square.onnx"


@pytest.mark.parametrize("form", ["text", "json"])
def test_requests_are_logged_on_standard_error(model: Path, form: str) -> None:
    """ONNX Runtime writes nothing between the lines."""
    words = ["--access-log", form, "--planner", "single"]
    with started(model, f"square={square(model.parent)}", *words) as (process, line):
        address = urlsplit(line.split()[4].rstrip(",")).netloc
        assert infer(address, fed([1, 2], [1, 2]), name="square")[0] == 400
        body = json.dumps(fed([1, 2, 3], [3])).encode()
        _, _, answer = ask(address, "POST", "/v2/models/doubling/infer", body)
        ask(address, "GET", "/v2/models/a%0Ab")
        process.send_signal(signal.SIGINT)
        code, _, err = ended(process)
    assert code == 0
    failed, inference, other = err.splitlines()
    assert "/v2/models/square/infer" in failed and "400" in failed
    if form == "json":
        seen = json.loads(inference)
        assert seen.pop("duration_s") > 0
        assert seen == {
            "client": "127.0.0.1",
            "method": "POST",
            "path": "/v2/models/doubling/infer",
            "status": 200,
            "bytes_in": len(body),
            "bytes_out": len(answer),
            "model": "doubling",
        }
        assert json.loads(other)["status"] == 404
    else:
        assert inference.startswith(
            f"127.0.0.1 POST /v2/models/doubling/infer 200 {len(body)} B in {len(answer)} B out "
        )
        assert inference.endswith(" ms doubling")
        assert "GET /v2/models/a%0Ab 404 " in other and other.endswith(" ms -")


def test_several_models_are_served_by_name(model: Path, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "third.onnx").write_bytes(model.read_bytes())
    words = [f"second={model}", "--repository", str(tmp_path / "repository")]
    with started(model, *words) as (process, line):
        assert process.stdout is not None
        assert line.startswith("doubling is served at ")
        assert process.stdout.readline().startswith("second is served at ")
        address = urlsplit(line.split()[4].rstrip(",")).netloc
        for name in "doubling", "second":
            assert infer(address, fed([1], [1]), name=name)[0] == 200
        assert infer(address, fed([1], [1]), name="third")[0] == 503  # not loaded
        assert ask(address, "POST", "/v2/repository/models/third/load")[0] == 200
        assert infer(address, fed([1], [1]), name="third")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "", "")


def test_a_server_without_a_model_yet_says_where_it_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coexec", "serve", "--repository", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--port", "0"], stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("no model is loaded yet; the server answers at http://127.")
            address = urlsplit(line.split()[9].rstrip(";")).netloc
            status, _, body = ask(address, "POST", "/v2/repository/index")
            assert (status, json.loads(body)) == (200, [])
        finally:
            process.kill()


@pytest.mark.parametrize("package", ["orjson", "prometheus-client", "starlette", "uvicorn"])
def test_without_the_extra_the_verb_says_what_to_install(
    model: Path, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == package.replace("-", "_") else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main(["serve", str(model)]) == 3
    assert capsys.readouterr().err == (
        f"coexec: coexec serve needs {package}, which is not installed; pip install "
        f"orjson prometheus-client starlette uvicorn\n"
    )


def test_connections_do_not_collect_what_they_send() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_urls_of_other_addresses() -> None:
    with listen("localhost", 0) as listener:
        assert is_loopback(listener)
        assert url_of(listener, "a model").endswith("/v2/models/a%20model")
    if not socket.has_ipv6:
        return
    try:
        listener = listen("::1", 0)
    except Exception as error:
        assert "::1" in str(error)  # this machine has no such address
        return
    with listener:
        assert is_loopback(listener)
        assert url_of(listener, "m").startswith("http://[::1]:")
