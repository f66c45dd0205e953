"""The dashboard: web pages that show and change a runtime, served with the gateway or alone.

A JSON interface over functions that the command line also uses, and the built files of the page. It reaches
a tool only through a session, decides nothing about approval, and shows no secrets.
"""
