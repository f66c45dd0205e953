"""Tools created from OpenAPI 3.0 and 3.1 documents, one per operation.

`document` parses a document, `schemas` simplifies its schemas, `operations` turns operations into records,
`api_file` stores them, `requests` builds HTTP requests from arguments, and `tools` registers the tools. A
document is read once, when an API is added; later only the stored records are read.
"""
