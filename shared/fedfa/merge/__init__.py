"""How updates become the next global model: pure functions, no I/O, no clock, no randomness.

A rule looks only at the numbers of the window's entries and answers with a Combination; one
kernel, `combine`, applies it to the vectors. Rules stay a few readable lines, and a new rule
needs no new vector code.
"""

from fedfa.merge.combine import Combination, Merge, combine
from fedfa.merge.fedfa import fedfa_delta, fedfa_param
from fedfa.merge.rules import Rule, rule_of

__all__ = ["Combination", "Merge", "Rule", "combine", "fedfa_delta", "fedfa_param", "rule_of"]
