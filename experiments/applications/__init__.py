"""What the layers are good for, learned from data: sorting, deciding; and training on several processes."""
