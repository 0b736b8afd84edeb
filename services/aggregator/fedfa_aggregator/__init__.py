"""The aggregator: applies the federation's rule to every arriving update, exactly once."""
