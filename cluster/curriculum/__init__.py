"""The order and the difficulty of the training tasks."""
