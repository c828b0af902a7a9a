"""Learning to allocate treatment, through the decision or in two stages: data, training, findings, figures, command."""
