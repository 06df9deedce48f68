"""How large an expression and its evaluation may get."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How large an expression and its evaluation may get.

    Cost is counted in the units of Kubernetes (cel-go interpreter/runtimecost.go, k8s.io/apiserver
    pkg/cel/library/cost.go): 1 for a variable, a field or a call, and more by the size of what a function reads.
    Kubernetes counts some functions far below what they do: a deep `==` costs what a shallow one costs. So what is
    really walked is counted beside it, as work.

    Attributes:
        expression_bytes: UTF-8 bytes of the source; the default is that of DRA device selectors
            (`resource.k8s.io/v1` CELSelectorExpressionMaxLength).
        nesting: depth of the syntax tree.
        comprehension_nesting: macros such as `all` inside each other.
        steps: cost of all evaluations that share a budget.
        call: cost of one evaluation.
        work: what is walked, of all evaluations that share a budget; one unit is about 0.1 microseconds.
        seconds: wall-clock time of all evaluations that share a budget.
        text: characters of a string that is built, bytes of bytes.
        items: elements of a list or map that is built.
        patterns: microseconds that compiling regular expressions takes, as estimated before.
        built: characters and elements (8 each) of everything that is built by evaluations that share a budget.
    """

    expression_bytes: int = 10 * 1024
    nesting: int = 100
    comprehension_nesting: int = 6
    steps: int = 1_000_000
    seconds: float = 0.25
    text: int = 1024 * 1024
    items: int = 100_000
    call: int = 1_000_000
    work: int = 10_000_000
    built: int = 32 * 1024 * 1024
    patterns: int = 200_000


DEFAULT_LIMITS: Final = Limits()
SELECTOR_LIMITS: Final = Limits(text=64 * 1024, items=10_000, work=5_000_000, built=4 * 1024 * 1024, patterns=50_000)
"""One selector on one device: `resource.k8s.io/v1` CELSelectorExpressionMaxCost is 1,000,000."""
POLICY_LIMITS: Final = Limits(steps=10_000_000, seconds=0.5, work=20_000_000)
"""All expressions of one policy: k8s.io/apiserver pkg/apis/cel/config.go, RuntimeCELCostBudget, and PerCallLimit for
each of them."""
MATCH_CONDITION_LIMITS: Final = Limits(steps=2_500_000, work=5_000_000)
"""All match conditions of one policy: RuntimeCELCostBudgetMatchConditions."""
