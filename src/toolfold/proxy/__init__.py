"""The model proxy: model APIs that shorten the tools of a request on its way to the provider.

A client sets only its base URL. One line for all dialects: admit → read → fold → upstream → unfold. What a
dialect looks like is known in `providers`; which tools are shown is decided by the same code as in a session.
"""

from toolfold.proxy.app import Proxy

__all__ = ["Proxy"]
