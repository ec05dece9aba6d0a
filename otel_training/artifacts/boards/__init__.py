"""What each dashboard shows: rows of panels, the first question of a person on call top left."""
