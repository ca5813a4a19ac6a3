"""Settings of every test run."""

import os
import sys

# What Python compiled is kept, also where the machine asks it not to: else each worker rewrites all tests at its start,
# and each process that a test starts compiles the gateway. It stands first, because the next line loads much.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from hypothesis import settings  # noqa: E402

# No deadline: a clock is no promise, and two cores are shared. A failing example prints how to run it again.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
