"""How updates become the next global model. PURE: no I/O, no clock, no randomness.

A rule looks only at the numbers of the window's entries and answers with a Combination, and with
the slots that open again; one kernel, `combine`, applies it to the vectors. Rules stay a few
readable lines, and a new rule needs no new vector code.
"""

from fedfa.merge.combine import Combination, Verdict, combine
from fedfa.merge.entry import Entry
from fedfa.merge.rules import Rule, rule_of, window_of, window_size

__all__ = [
    "Combination",
    "Entry",
    "Rule",
    "Verdict",
    "combine",
    "rule_of",
    "window_of",
    "window_size",
]
