"""What is looked at before a training is paid for: before_start, preflight, selfcheck."""
