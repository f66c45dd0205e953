"""Internet access for the web, browser and message tools.

`address_policy` decides which addresses may be used; `fetching` reads documents, `extraction` turns them into
text, `search_backends` query search services, and `browser_pool` runs a browser. Nothing in this package
depends on tools, sessions or models.
"""
