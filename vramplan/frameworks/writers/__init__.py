"""What the writers of several frameworks share."""
