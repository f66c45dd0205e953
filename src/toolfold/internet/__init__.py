"""Access to the internet for the web, browser and message tools.

`address_policy` decides which addresses may be used; `fetching` reads documents, `extraction` turns them into
text, `search_backends` ask search services. Knows nothing of tools, sessions and models.
"""
