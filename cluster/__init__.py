"""Running it all: configuration, Ray actors, weight transfer, the training loop, and the command line."""
