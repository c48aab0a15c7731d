"""Changes to a framework's configuration file or command, leaving the rest as it was written."""
