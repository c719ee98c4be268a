"""What triage keeps in a home: guards and cases."""
