"""What the system tells about itself."""
