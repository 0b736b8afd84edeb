"""For all tests: time never decides whether one passes."""

from hypothesis import settings

settings.register_profile("fedfa", deadline=None)
settings.load_profile("fedfa")
