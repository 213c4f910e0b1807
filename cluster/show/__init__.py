"""What a person looks at: live view, curve, report, transcripts."""
