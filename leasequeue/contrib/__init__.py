"""Bridges to other packages. Each module here imports the package that it is named after; nothing else imports them."""
