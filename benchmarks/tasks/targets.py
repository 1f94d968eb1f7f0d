"""What counts as solved, for the column "evaluations to target" of a report."""

TARGETS = {
    "MountainCarContinuous-v0": 90.0,
    "Swimmer-v5": 300.0,
    "CartPole-v1": 475.0,
    "MountainCar-v0": -110.0,
    "Pendulum-v1": -300.0,
    "Acrobot-v1": -100.0,
    "InvertedPendulum-v5": 950.0,
    "InvertedDoublePendulum-v5": 9100.0,
    "Reacher-v5": -6.0,
    "Hopper-v5": 1000.0,
    "Walker2d-v5": 1000.0,
    "HalfCheetah-v5": 2000.0,
    "FrozenLake-v1": 0.7,
    "CliffWalking-v1": -13.0,
}
"""Mean return on the selection starts that counts as solved (for most of the classic tasks
Gymnasium's own threshold)."""
