"""What a prescription becomes: program files, the shims as a module of their own, and the proof. Imports no torch."""
