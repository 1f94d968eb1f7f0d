"""Policies, rollouts, baselines and the runs that compare them."""
