"""The model proxy: forwards requests to model providers, with only the tools that the model needs.

A client sets only its base URL. One line for all dialects: admit → read → fold → upstream → unfold. What a
dialect looks like is known in `providers`; which tools are shown is decided by the same code as in a session.
"""

from toolfold.proxy.app import Proxy

__all__ = ["Proxy"]
