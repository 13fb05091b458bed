"""What tests share: toy data, toy models, and processes to kill."""
