"""Metrics and statistics of a server, compared with the answers that its clients got."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families

from coexec.serve.intake import ServeLimits
from tests.helpers.patience import until
from tests.helpers.servers import Echo, Stuck, ask, fed, infer, serving, tensor_of

GOOD = fed([1, 2], [1, 2])


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Echo(tensor_of("x", "FP32", (-1, 2)))) as address:
        yield address


def samples(address: str) -> dict[tuple[str, str], float]:
    """Values of the metrics, by name and by the label that is not the model."""
    status, headers, text = ask(address, "GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                labels = {k: v for k, v in sample.labels.items() if k != "model"}
                found[sample.name, "".join(labels.values())] = sample.value
    return found


def test_metrics_and_statistics_add_up_with_what_clients_saw(server: str) -> None:
    seen: Counter[str] = Counter()
    bytes_in = bytes_out = 0
    bodies = [json.dumps(GOOD), json.dumps({"inputs": []}), "no JSON"]
    for number in range(30):
        body = bodies[number % 3]
        status, _, answer = ask(server, "POST", "/v2/models/echo/infer", body)
        seen[str(status)] += 1
        bytes_in += len(body)
        bytes_out += len(answer)
    until(lambda: sum(count(server).values()) == 30)
    assert count(server) == seen == {"200": 10, "400": 20}
    found = samples(server)
    assert found["coexec_body_bytes_total", "in"] == bytes_in
    assert found["coexec_body_bytes_total", "out"] == bytes_out
    client = triton.InferenceServerClient(server)
    [stats] = client.get_inference_statistics("echo")["model_stats"]
    assert client.get_inference_statistics()["model_stats"] == [stats]
    assert (stats["name"], stats["version"]) == ("echo", "1")
    assert (stats["inference_count"], stats["execution_count"]) == (10, 10)
    times = stats["inference_stats"]
    assert (times["success"]["count"], times["fail"]["count"]) == (10, 20)
    phases = "queue", "compute_input", "compute_infer", "compute_output"
    assert {times[phase]["count"] for phase in phases} == {10}
    # The phases follow each other within the request.
    assert 0 < sum(times[phase]["ns"] for phase in phases) <= times["success"]["ns"]


def count(address: str) -> dict[str, float]:
    """Number of requests by status."""
    name = "coexec_request_seconds_count"
    return {label: value for (n, label), value in samples(address).items() if n == name}


def test_requests_for_no_model_make_no_metrics(server: str) -> None:
    """Otherwise a client could fill the memory with names."""
    for number in range(5):
        assert infer(server, GOOD, name=f"other{number}")[0] == 404
    assert b"other" not in ask(server, "GET", "/metrics")[2]


def test_the_queue_is_measured() -> None:
    served = Stuck()
    with serving(served, ServeLimits(queue=1)) as address, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(infer, address, GOOD) for _ in range(3)]
        until(lambda: samples(address)["coexec_queue_length", ""] == 1)
        assert infer(address, GOOD)[0] == 429
        until(lambda: served.answer() or all(each.done() for each in asked))
        until(lambda: count(address) == {"200": 3, "429": 1})
        assert samples(address)["coexec_queue_length", ""] == 0
        assert samples(address)["coexec_phase_seconds_count", "queue"] == 3


def test_servers_do_not_share_metrics() -> None:
    with serving(Echo()) as first, serving(Echo()) as second:
        assert infer(first, GOOD)[0] == 200
        until(lambda: count(first) == {"200": 1})
        assert count(second) == {}


def test_the_configuration_is_that_of_the_model() -> None:
    served = Echo(tensor_of("x", "FP32", (-1, 2)), tensor_of("t", "BYTES", (3,)))
    with serving(served) as address:
        found = triton.InferenceServerClient(address).get_model_config("echo", "1")
    tensors = [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]},
        {"name": "t", "data_type": "TYPE_STRING", "dims": [3]},
    ]
    assert found == {
        "name": "echo",
        "platform": "onnx_onnxv1",
        "backend": "coexec",
        "max_batch_size": 0,
        "input": tensors,
        "output": tensors,
    }


def test_a_client_with_the_token_is_answered() -> None:
    with serving(Echo(), token="secret") as address:
        tensor = triton.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
        client = triton.InferenceServerClient(address)
        right = {"Authorization": "Bearer secret"}
        found = client.infer("echo", [tensor], headers=right).as_numpy("x")
        np.testing.assert_array_equal(found, np.ones((1, 2)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no header Authorization; send one: Bearer TOKEN"),
        ("secret", "not the scheme Bearer; send Bearer TOKEN"),
        ("Basic secret", "not the scheme Bearer; send Bearer TOKEN"),
        ("Bearer", "a wrong token"),
        ("Bearer ", "a wrong token"),
        ("Bearer secre", "a wrong token"),
        ("Bearer secrets", "a wrong token"),
    ],
)
def test_a_client_without_the_token_is_refused(value: str | None, reason: str) -> None:
    headers = {} if value is None else {"Authorization": value}
    with serving(Echo(), token="secret") as address:
        for method, path in (
            ("POST", "/v2/models/echo/infer"),
            ("GET", "/v2/models/echo"),
            ("POST", "/v2/repository/index"),
            ("GET", "/metrics"),
            ("GET", "/nothing"),
        ):
            status, answered, body = ask(address, method, path, None, headers)
            assert status == 401 and answered["www-authenticate"] == "Bearer"
            assert reason in json.loads(body)["error"]
        for path in "/v2/health/live", "/v2/health/ready":
            assert ask(address, "GET", path, headers=headers)[0] == 200
