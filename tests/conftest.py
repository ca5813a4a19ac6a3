"""Settings of every test run."""

import os
import sys

# What Python compiled is kept, also where the machine asks it not to: else each worker rewrites all tests at its start,
# and each process that a test starts compiles the gateway. It stands first, because the next line loads much.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from collections.abc import Generator  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# No deadline: a clock is no promise, and two cores are shared. A failing example prints how to run it again.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test of PostgreSQL that is skipped has failed: what it guards would be guarded by nobody, and no one told."""
    report = yield
    if report.skipped and item.get_closest_marker("postgres") is not None and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"a test of PostgreSQL is never skipped: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on PostgreSQL."""
    passed, failed = (
        sum("postgres" in report.keywords for report in terminalreporter.getreports(outcome))
        for outcome in ("passed", "failed")
    )
    if passed or failed:
        terminalreporter.write_line(f"on PostgreSQL: {passed} passed, {failed} failed")
