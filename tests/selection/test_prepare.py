"""What is logged of planning."""

import logging
from pathlib import Path

import pytest

from coexec.engines.detect import usable_cores
from coexec.errors import UsageError
from coexec.selection.prepare import prepare
from coexec.settings import Settings
from tests.helpers.small_models import branches

CPU = f"cpu:{usable_cores()[0]}"


def test_begin_and_end_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coexec"):
        prepare(branches(), Settings([CPU], "single", cache=tmp_path))
    begins, ends = (record.message for record in caplog.records)
    assert begins == "the model: planning with single begins"
    assert ends.startswith("the model: planned with single in ") and ends.endswith(f"on {CPU}")


def test_a_refusal_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings([CPU], "fast", cache=tmp_path)
    with caplog.at_level(logging.INFO, "coexec"), pytest.raises(UsageError) as caught:
        prepare(branches(), settings)
    assert caplog.records[-1].message == f"the model: no plan by fast: {caught.value}"
