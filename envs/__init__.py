"""Text environments: the contract, its checker, and the built-in worlds. Standard library and pydantic only."""
