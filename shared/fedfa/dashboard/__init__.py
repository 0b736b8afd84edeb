"""The dashboard: federations in a browser, live, from the bucket alone.

A Feed reads, an application answers, `serve` runs it in a thread. Importing this package imports
starlette and uvicorn.
"""

from fedfa.dashboard.app import application
from fedfa.dashboard.control import Control
from fedfa.dashboard.feed import Feed
from fedfa.dashboard.serving import serve
from fedfa.dashboard.settings import DashboardSettings

__all__ = ["Control", "DashboardSettings", "Feed", "application", "serve"]
