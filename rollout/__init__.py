"""Playing episodes: chat encoding, trajectories, and the vLLM policy that samples actions."""
