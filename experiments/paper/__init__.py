"""The paper's eight panels: trained with every gradient rule, kept, drawn, and held against what the paper claims."""
