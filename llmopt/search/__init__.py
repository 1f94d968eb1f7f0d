"""The search itself: who proposes points, what a request costs, and the state that is kept."""
