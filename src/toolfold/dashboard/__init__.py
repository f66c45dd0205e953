"""The dashboard: a web page over a runtime, served beside the gateway or alone.

A JSON interface over functions that the command line also uses, and the built files of the page. It reaches
a tool only through a session, decides nothing about approval, and shows no secrets.
"""

from toolfold.dashboard.dashboard import Dashboard, make_page_approver

__all__ = ["Dashboard", "make_page_approver"]
