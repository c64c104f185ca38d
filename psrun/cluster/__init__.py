"""One cluster as a task sees it: its servers, their addresses, and how to start them."""
