"""The command line: one module per verb that parses, calls and gives an exit code. A verb is loaded when it is used."""
