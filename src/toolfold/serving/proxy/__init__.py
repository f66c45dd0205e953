"""The model proxy, which forwards requests to model providers with only the tools that a model needs.

A client only has to set its base URL. Requests of all APIs take the same path: check access, read, reduce the
tools array, send, merge the replies. The format of each API is known in `providers`; which tools are shown is
decided by the same code as in a session.
"""

from toolfold.serving.proxy.proxy_app import Proxy

__all__ = ["Proxy"]
