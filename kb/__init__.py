"""The machinery of the knowledge base: page model, derived views, MkDocs adapters."""
