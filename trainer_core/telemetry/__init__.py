"""What a line tells about itself: heartbeat, seconds by cause, plots. No view here can stop a line."""
