"""Reading a command line as a shell would, without running it."""
