"""The command line: a module in `verbs` per verb parses, calls and gives an exit code. It is loaded when it is used."""
