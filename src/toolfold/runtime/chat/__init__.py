"""Approval questions in a chat: sent to a message target, and answered there by a reply with a code."""
