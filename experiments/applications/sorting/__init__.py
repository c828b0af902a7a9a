"""Learning to sort handwritten digits from the order alone: data, training, findings, figures, and the command."""
