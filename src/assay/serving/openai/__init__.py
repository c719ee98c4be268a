"""The wire: routes, bodies, pages and errors, as the official SDK has them."""
