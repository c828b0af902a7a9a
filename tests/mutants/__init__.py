"""Small faults of the code, each with the tests that notice it: ``python -m tests.mutants`` shows that they do."""
