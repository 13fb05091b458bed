"""One file per command: it parses, calls one function of a room, and prints. No library code lives here."""
