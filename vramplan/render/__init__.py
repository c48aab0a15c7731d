"""Results for people and machines; nothing is computed here."""
