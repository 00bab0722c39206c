"""`python -m papers`: figures and tables of the five papers, beside what this project gets."""
