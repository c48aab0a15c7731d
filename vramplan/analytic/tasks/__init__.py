"""What is trained for, if that is not the next token: one file for each trainer."""
