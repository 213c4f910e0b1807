"""Learning: every method is the log-probability of the agent's own actions times a weight."""
