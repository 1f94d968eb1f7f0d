"""What is wanted of a policy, and what its parameters mean, in words for a model."""

from __future__ import annotations

from gymnasium import spaces

from llmopt.policies.linear import LinearPolicy


def describe_goal(starts: int) -> str:
    """Say what the value of a policy is, and on what it is judged in the end.

    Args:
        starts: Seeded starts of one evaluation.
    """
    over = (
        f"the same {starts} random starts each time"
        if starts > 1
        else "one start, the same each time"
    )
    return (
        "A policy for the environment below is wanted. The value of a point is the mean return "
        f"(the sum of an episode's rewards; larger is better) over {over}. The best policy is "
        "judged in the end on fresh starts, so that what helps on these alone is worth nothing."
    )


def describe_parameters(
    policy: LinearPolicy, *, choices: bool = False, scaled: bool = False, clipped: bool = False
) -> str:
    """Say what parameters mean that have the names of `LinearPolicy.names`.

    Args:
        policy: The form of the policies.
        choices: Whether each parameter is the action of one state instead.
        scaled: Whether observed numbers are scaled, and not in their own units.
        clipped: Whether an action beyond its bounds is clipped before it acts and is charged.
    """
    if choices:
        return "Each parameter is the action taken in one state: s0 that in state 0."
    constant = ", plus `action<-bias`" if policy.bias else ""
    inner = (
        "the entry `action<-state` of its state"
        if isinstance(policy.observation_space, spaces.Discrete)
        else "the sum over all observed numbers of the weight `action<-observation` times the "
        f"number, {'scaled as said above' if scaled else 'in its own units'}"
    )
    if isinstance(policy.action_space, spaces.Discrete):
        return (
            f"The policy: each action has a score, {inner}{constant}. The action with the highest "
            "score is taken, so only differences between scores matter."
        )
    end = (
        "It is then clipped to its bounds."
        if clipped
        else "It is passed on as it is, also beyond its bounds."
    )
    return f"The policy: each action is {inner}{constant}. {end}"
