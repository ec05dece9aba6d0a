"""Callbacks for trainers of others; each needs the extra of its name."""
