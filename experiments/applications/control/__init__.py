"""Learning from somebody who balances what he pays for, and what he balances."""
