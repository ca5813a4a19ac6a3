"""`Prefer: wait=N` by the grammar of RFC 7240; whatever is not in it is no wish."""

import time

import pytest

from gateway.web.prefer import preferred_wait_s


def wait_of(*lines: str, name: bytes = b"Prefer") -> int:
    return preferred_wait_s([(b"host", b"x"), *((name, line.encode("latin-1")) for line in lines)])


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (("wait=20",), 20),
        (("wait=0",), 0),
        (("WAIT=7",), 7),
        (("wait = 7",), 7),
        (("  wait=7\t",), 7),
        (("respond-async, wait=10",), 10),
        (("wait=10, respond-async",), 10),
        (('foo="a, wait=3", wait=4',), 4),
        (('foo="a\\", wait=3", wait=4',), 4),
        (("foo; a=b; wait=3, wait=4",), 4),
        (("wait=4; foo=bar",), 4),
        (("wait=4;",), 4),
        ((",, wait=4,",), 4),
        (("respond-async", "wait=5"), 5),
        (("wait=5", "wait=6"), 5),
        (("wait=5, wait=6",), 5),
        (("return=minimal; foo=",), 0),
        (("wait=999999999",), 999_999_999),
        (("wait=007",), 7),
    ],
)
def test_the_first_wait_of_the_list_counts(lines: tuple[str, ...], seconds: int) -> None:
    assert wait_of(*lines) == seconds


@pytest.mark.parametrize(
    "line",
    [
        "", "wait", "wait=", "wait=x", "wait=-1", "wait=+1", "wait=1.5", "wait=1e3", 'wait="5"', "wait=5s", "wait:5",
        "wait=5 6", "wait=5, (", 'foo="open, wait=5', "wait=9999999999", "await=5", "wait5", "wait=٣"[:5] + "\xb2",
        "wait=x, wait=5", "; wait=5", "=5", "foo=a b, wait=5",
    ],
)  # fmt: skip
def test_what_can_not_be_read_is_no_wish(line: str) -> None:
    assert wait_of(line) == 0


def test_only_this_header_is_read_in_any_case() -> None:
    assert wait_of("wait=5", name=b"pReFeR") == 5
    assert wait_of("wait=5", name=b"Preference") == 0


def test_a_hostile_line_costs_no_time() -> None:
    """Repeated inside repeated: a pattern that backtracks would need hours for 8 KB."""
    started_s = time.process_time()
    for line in ("a;" * 4_000 + "(", "a" * 8_000 + "(", "a=" * 4_000, " " * 8_000 + "(", '"' * 8_000, ";\t" * 4_000,
                 "a" + " " * 8_000 + "(", "a;" + " ; " * 2_600 + "("):  # fmt: skip
        wait_of(line)
    assert time.process_time() - started_s < 1
