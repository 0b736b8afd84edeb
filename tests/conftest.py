"""For all tests: time never decides whether one passes, and who runs what in parallel."""

from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("fedfa", deadline=None)
settings.load_profile("fedfa")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` a file's tests share a worker and its servers; schedules need none."""
    from xdist.scheduler import LoadFileScheduling

    class Spread(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            is_alone = nodeid.startswith("tests/simulation/")
            return nodeid if is_alone else str(super()._split_scope(nodeid))

    return Spread(config, log) if config.getvalue("dist") == "loadfile" else None
