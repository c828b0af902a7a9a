"""What the layers are good for: sorting, deciding, several processes."""
