"""Define the commands of `hardwon`."""
