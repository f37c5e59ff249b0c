"""Studies: several runs that together answer a question, from the quickstart to the paper's tables and figures."""
