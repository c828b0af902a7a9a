"""Questions to a node, answered in words and numbers."""
