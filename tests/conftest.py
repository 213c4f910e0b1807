"""Loaded before every test."""

# Hypothesis' plugin would import it in the deep call stack of pytest's summary, where Python 3.11 may fail to parse a module.
import hypothesis

# A test is right or wrong, however busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
