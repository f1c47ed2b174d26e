"""Callbacks for other people's trainers, one file each; a file needs its library only when it is imported."""
