import pytest

# Asserts outside of test modules: they say what they compared, too.
pytest.register_assert_rewrite("tests.services.faults", "tests.services.runs")
