"""The Tinker API: sessions in which a client drives training and sampling with its own loop."""
