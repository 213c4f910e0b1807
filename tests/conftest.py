"""Loaded before every test."""

# Hypothesis' plugin would import it in the deep call stack of pytest's summary, where Python 3.11 may fail to parse a module.
import hypothesis  # noqa: F401
