"""The one error for bad input: it says what was got, what was expected, and what to do."""

import difflib


class InputError(ValueError):
    """A mistake in what a person gave us: a config, a path, a model, an environment, a reward.

    The command line prints its message without a traceback and exits with status 2. Everything else that is raised is a
    fault of ours and keeps its traceback.
    """


def did_you_mean(word: str, choices: list[str]) -> str:
    """The end of a sentence that suggests the closest of `choices`, or lists them all when none is close."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(choices))}"
