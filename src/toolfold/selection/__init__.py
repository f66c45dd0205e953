"""Choose which tools a model is shown: retrieval, the plan of a turn, placement, enrichment and learning."""
