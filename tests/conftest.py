"""Settings of every test run."""

from hypothesis import settings

# No deadline: a clock is no promise, and two cores are shared. A failing example prints how to run it again.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
