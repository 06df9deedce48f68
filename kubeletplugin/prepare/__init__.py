"""What a pod gets: claim -> checkpoint -> CDI spec, and the way back."""
