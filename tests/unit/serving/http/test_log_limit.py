import io
import logging

import pytest

from assay.base.json_log import MAX_CHARACTERS
from assay.serving.http.log_limit import LimitedLogHandler
from clocks import ManualClock


@pytest.fixture
def log(request) -> tuple[logging.Logger, LimitedLogHandler, ManualClock]:
    clock, written = ManualClock(0.0), io.StringIO()
    handler = LimitedLogHandler(clock.now_s)
    handler.setStream(written)
    logger = logging.getLogger(request.node.name)
    logger.propagate = False
    logger.addHandler(handler)
    return logger, handler, clock


def test_a_kind_is_written_once_a_minute_with_the_number_of_those_left_out(log) -> None:
    logger, handler, clock = log
    written = handler.stream
    for number in range(1000):
        logger.warning("connection %d is closed", number)
        clock.sleep_s(0.05)
    logger.warning("another")
    assert written.getvalue() == "connection 0 is closed\nanother\n"
    clock.sleep_s(10.5)
    handler.write_counts()
    assert written.getvalue().splitlines()[2:] == [f"999 more within 60 s: {logger.name}: connection 0 is closed"]
    clock.sleep_s(120.0)
    logger.warning("another")
    assert written.getvalue().splitlines()[3:] == ["another"]


def test_two_exceptions_of_one_line_are_two_kinds_and_a_long_one_is_cut(log) -> None:
    logger, handler, _ = log
    written = handler.stream

    def fail(text: str) -> None:
        if text == "a":
            raise ValueError(text * 2 * MAX_CHARACTERS)
        raise ValueError(text)

    for text in "abab":
        try:
            fail(text)
        except ValueError as error:
            logger.error("failed", exc_info=error)
    assert written.getvalue().count("failed") == 2
    assert "characters left out" in written.getvalue() and len(written.getvalue()) < 2 * MAX_CHARACTERS + 200
