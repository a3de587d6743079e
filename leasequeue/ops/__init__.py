"""What the command line and the dashboard share: questions and actions, no words and no pages."""
