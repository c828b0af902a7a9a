"""The paper's eight panels."""
