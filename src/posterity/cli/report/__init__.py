"""What commands found, for people: one file a verb, made from the document that JSON prints."""
