"""The subcommands of the command line; `cluster.cli` puts them together."""
