"""Build small models, and add one LoRA adapter per role."""
