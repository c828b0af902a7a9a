"""Ready-made layers: each states itself declaratively, then adds its fast paths."""
