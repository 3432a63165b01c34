"""What a user can start from a screen: commands of exportdoctor, the editor, copying to the clipboard."""
